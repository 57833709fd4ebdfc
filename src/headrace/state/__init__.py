"""State: the cells of a key, the files that keep them, and the soft state of a worker."""
