"""Studies: recipes and readouts, where they run, and what is published of them."""
