"""The public import path of the Spark data sources ``headrace-state`` and ``headrace-view``."""

from headrace.checkpoints.spark_source import read_views, register

__all__ = ["read_views", "register"]
