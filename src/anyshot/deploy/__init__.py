"""For people who deploy: the law as a classifier, calibrated, shared, served, and advice on what to label next."""
