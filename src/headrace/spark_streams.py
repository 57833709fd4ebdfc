"""The public import path of the Spark data source ``headrace``."""

from headrace.checkpoints.stream_source import register

__all__ = ["register"]
