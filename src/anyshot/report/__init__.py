"""The results of a study or an evaluation for people: a page, and a summary in the terminal. Nothing imports torch."""
