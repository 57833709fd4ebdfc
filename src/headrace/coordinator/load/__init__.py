"""Measuring how much work each bin and each worker has."""
