"""What may come in and what may go wrong on the way: bad inputs of every kind, and ends at every moment.

    python -m hostile                    all of it (`make hostile`)
    python -m hostile promises           the tests that docs/promises.md names, with many rounds
    python -m hostile corpus crashes --sample 40 12            so many cases of each part, drawn by --seed
    python -m hostile crashes --only "publish: " --share 0 2   the first half of some

Every bad input ends in exit code 2 and one sentence, within bounds of time and memory, and leaves nothing behind; every
command that is killed at any moment gives the same result when it is run again.
"""
