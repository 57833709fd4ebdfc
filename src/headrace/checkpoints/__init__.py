"""Checkpoints: retained steps whose state any process can open, verify and copy."""
