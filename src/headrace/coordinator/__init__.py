"""The coordinator: decides what to do next, as a function of what has happened. It does no I/O."""
