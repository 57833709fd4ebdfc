"""Looks at everything that a pipeline needs, before it runs: packages, Java, storage, Spark."""
