"""A step as functions: plan, read, route, apply, report. No clock, no randomness, no Spark here."""
