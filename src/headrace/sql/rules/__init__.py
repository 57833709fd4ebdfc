"""Rules that improve the IR without changing what it computes."""
