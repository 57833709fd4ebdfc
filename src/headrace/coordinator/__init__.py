"""The coordinator: what to do next, as a function of what has happened. No I/O of its own."""
