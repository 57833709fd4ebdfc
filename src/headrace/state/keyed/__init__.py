"""State of computations whose handlers see one key at a time."""
