"""Look at labelled data: copies, wrong labels, shot curves, held-out tests, and advice on what to label next."""
