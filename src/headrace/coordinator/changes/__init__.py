"""Changes of a pipeline while it runs: which are possible, and from which step on they hold."""
