"""The progress of a query, as ``StreamingQuery`` reports it, made of the summaries of steps."""

from __future__ import annotations

from collections import deque
from typing import Any

from pyspark.sql.streaming.listener import StreamingQueryProgress

from headrace.eventtime.timestamps import from_micros
from headrace.protocol.step_summary import StepSummary

#: How many reports are kept, as in Spark.
_KEPT = 100


class Progress:
    """The newest reports of a query.

    Args:
        facts: what all reports have: ``id``, ``runId`` and ``name``.
        computation: the name of the processor's computation.
        sink: what is written to, in words.
    """

    def __init__(self, facts: dict[str, Any], computation: str, sink: str) -> None:
        self._facts, self._computation, self._sink = facts, computation, sink
        self._reports: deque[StreamingQueryProgress] = deque(maxlen=_KEPT)

    def note(self, step: StepSummary) -> None:
        """Add the report of a step."""
        self._reports.append(self._of(step))

    @property
    def recent(self) -> list[StreamingQueryProgress]:
        """The newest reports, from the oldest to the newest one."""
        return list(self._reports)

    def _of(self, step: StepSummary) -> StreamingQueryProgress:
        counts = step.counts.get(self._computation)
        took_ms = round(step.seconds * 1_000)
        watermark_us, _ = step.head.watermark_of(self._computation)
        report = {
            **self._facts,
            "timestamp": _shown(step.head.clock_now),
            "batchId": step.step,
            "batchDuration": took_ms,
            "durationMs": {"triggerExecution": took_ms},
            "eventTime": {"watermark": _shown(max(0, watermark_us))},
            "stateOperators": [_operator(0 if counts is None else counts.late)],
            "sources": [],
            "sink": {
                "description": self._sink,
                "numOutputRows": 0 if counts is None else counts.produced,
            },
            "numInputRows": step.records,
            "inputRowsPerSecond": None,
            "processedRowsPerSecond": step.records / step.seconds if step.seconds else None,
            "observedMetrics": {},
        }
        return StreamingQueryProgress.fromJson(report)


def _operator(late: int) -> dict[str, Any]:
    """Return what is reported of the state. What Headrace does not count in each step is None."""
    unknown = (
        *("numRowsTotal", "numRowsUpdated", "numRowsRemoved", "allUpdatesTimeMs"),
        *("allRemovalsTimeMs", "commitTimeMs", "memoryUsedBytes", "numShufflePartitions"),
        "numStateStoreInstances",
    )
    return {
        "operatorName": "transformWithStateExec",
        **dict.fromkeys(unknown),
        "numRowsDroppedByWatermark": late,
    }


def _shown(micros: int) -> str:
    """Return a time as Spark writes it in reports."""
    return from_micros(micros).isoformat(timespec="milliseconds").replace("+00:00", "Z")
