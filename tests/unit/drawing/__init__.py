"""Pipelines, jobs and state as a notebook shows them."""
