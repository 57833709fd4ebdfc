"""State of per-record computations, whose handlers see one key at a time."""
