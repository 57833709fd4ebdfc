"""A streaming query that stops with its pipeline is quiet; everything else that it says is logged."""

from __future__ import annotations

import logging
import queue
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.sources.spark_stream import SparkStream, _Stopped, _without_stops


class Frame:
    """A micro-batch that cannot be computed any more."""

    def toArrow(self) -> Any:
        raise RuntimeError("interrupted")


def stream(*, closing: bool) -> SparkStream:
    made = SparkStream.__new__(SparkStream)
    made._started, made._waiting = threading.Event(), queue.Queue()
    made._started.set()
    made._query, made._closing = SimpleNamespace(id="query"), closing
    return made


def test_a_batch_that_a_stop_interrupts_is_not_taken_and_is_known_as_such() -> None:
    with pytest.raises(_Stopped):
        stream(closing=True)._take_batch(Frame(), 0)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="interrupted"):
        stream(closing=False)._take_batch(Frame(), 0)  # type: ignore[arg-type]


def test_only_what_py4j_logs_of_a_stop_is_dropped(caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("py4j.clientserver")
    log.addFilter(_without_stops)
    try:
        for error in (_Stopped("stopped"), ValueError("a defect")):
            try:
                raise error
            except Exception:
                log.exception("There was an exception while executing the Python Proxy")
        log.error("without an exception")
    finally:
        log.removeFilter(_without_stops)
    assert [record.exc_info and record.exc_info[0] for record in caplog.records] == [
        ValueError,
        None,
    ]
