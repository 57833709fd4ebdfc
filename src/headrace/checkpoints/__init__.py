"""Checkpoints: retained steps whose state can be opened, verified and copied, from any process."""
