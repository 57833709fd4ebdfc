"""A sink that writes each step with Spark: to any format and place that Spark can write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, get_args

import pyarrow as pa

from headrace.errors import PipelineError
from headrace.pipeline.sink import Sink

#: How a function makes writing a step again have no further effect.
Mode = Literal["overwrite_step", "transaction", "upsert"]
_FILES = ("parquet", "orc", "json", "csv")


class Spark(Sink):
    """Writes each step with a function that gets a DataFrame of Spark.

    After a crash the last steps come again, with the same numbers and rows. So the function must
    write in a way that makes no difference then. Say which one:

    - ``overwrite_step``: it replaces what an earlier write of this step left, such as a directory
      ``step=7``, or ``DELETE … WHERE step = 7`` in the same transaction.
    - ``transaction``: the table knows the step, and skips it: ``txnAppId`` and ``txnVersion`` of
      Delta, for example.
    - ``upsert``: rows replace those of the same key, such as ``MERGE INTO``.

    Args:
        write: takes the DataFrame and the step, and writes it with actions of Spark.
        mode: how ``write`` makes a repeated step have no further effect.
        at_least_once: accept a ``write`` that appends, so that the rows of the last steps may be
            there twice after a crash. In the place of ``mode``.

    Guarantees: exactly once, if ``write`` keeps to the mode. Headrace cannot check that. A driver
        that was replaced while it wrote may still write the same step with the same rows, which a
        write of any mode makes harmless.

    Cost: the rows of a step pass through the driver, and a job of Spark runs for each.

    Example::

        def write(frame, step):
            frame.write.mode("overwrite").parquet(f"out/step={step}")


        p.sink("totals", visits, hr.sinks.Spark(write, mode="overwrite_step"))

    Raises:
        PipelineError: without a mode, unless ``at_least_once`` is said.
    """

    def __init__(
        self,
        write: Callable[[Any, int], object],
        *,
        mode: Mode | None = None,
        at_least_once: bool = False,
    ) -> None:
        if mode is None and not at_least_once:
            raise PipelineError(
                "sinks.Spark needs to know how a repeated step has no further effect: an append would "
                "leave rows twice after a crash",
                remedy=f"say mode= ({', '.join(get_args(Mode))}), or at_least_once=True",
            )
        if mode is not None and (at_least_once or mode not in get_args(Mode)):
            raise PipelineError(
                f"mode={mode!r} with at_least_once={at_least_once} is no way to write",
                remedy=f"say one of mode= ({', '.join(get_args(Mode))}) and at_least_once=True",
            )
        self._write = write
        self.idempotent = not at_least_once

    @classmethod
    def files(cls, path: str, *, format: str = "parquet", **options: Any) -> Spark:
        """Return a sink that writes a directory ``step=N`` for each step, on any Hadoop file system.

        A reader that must not see half a step reads directories with a ``_SUCCESS`` file only.

        Args:
            path: the directory, such as ``hdfs://…`` or ``s3a://…``.
            format: ``parquet``, ``orc``, ``json`` or ``csv``.
            options: options of ``DataFrameWriter``.
        """
        if format not in _FILES:
            raise PipelineError(
                f"sinks.Spark.files cannot write {format!r}", remedy=f"use {', '.join(_FILES)}"
            )
        made = cls(_Directories(path.rstrip("/"), format, options), mode="overwrite_step")
        made._place = path.rstrip("/")
        return made

    _place = ""

    def occupies(self) -> str:
        return self._place

    def deliver(self, step: int, rows: pa.Table) -> None:
        from headrace.session import spark_session

        self._write(spark_session().createDataFrame(rows), step)


class _Directories:
    """Writes a directory for each step."""

    def __init__(self, path: str, kind: str, options: dict[str, Any]) -> None:
        self._path, self._kind, self._options = path, kind, options

    def __call__(self, frame: Any, step: int) -> None:
        writer = frame.write.mode("overwrite").options(**self._options).format(self._kind)
        writer.save(f"{self._path}/step={step}")
