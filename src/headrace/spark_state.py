"""The Spark data source ``headrace-state``, under the name by which users import it."""

from headrace.checkpoints.spark_source import register

__all__ = ["register"]
