"""Images and features from wherever people have them, as one kind of store."""
