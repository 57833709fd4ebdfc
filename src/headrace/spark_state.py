"""The public import path of the Spark data source ``headrace-state``."""

from headrace.checkpoints.spark_source import register

__all__ = ["register"]
