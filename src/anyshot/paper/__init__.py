"""The paper's printed numbers as data, and its claims as code.

`numbers.csv` holds every printed number, transcribed by `tools/transcribe_paper.py`. `printed` reads it, `rounding`
says what a printed number can still mean, `checks` derives the tables again, `claims` the sentences, and `audit`
puts the verdicts together. Nothing here imports torch.
"""
