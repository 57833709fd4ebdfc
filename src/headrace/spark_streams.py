"""The public import path of the Spark data source ``headrace``. It needs Spark 4.2 or newer."""

from headrace.errors import PipelineError

try:
    from headrace.checkpoints.stream_source import register
except ModuleNotFoundError as error:
    if not str(error.name).startswith("pyspark"):
        raise
    raise PipelineError(
        "reading a retained stream with Spark needs Spark 4.2: before, a batch of a source in Python "
        "has no limits",
        remedy="use PySpark 4.2 or newer; or read the stream with headrace.Checkpoint, or from a sink",
    ) from error

__all__ = ["register"]
