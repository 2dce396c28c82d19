"""`anyshot serve`: a local web page and HTTP API around an ImageClassifier."""
