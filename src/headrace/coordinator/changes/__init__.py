"""Changes of a running pipeline: which are possible, and from which step on they hold."""
