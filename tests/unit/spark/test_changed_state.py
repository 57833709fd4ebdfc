"""A processor whose ``init`` declares other state than is stored: what is accepted, and what is not."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

import headrace as hr
from headrace.errors import SchemaChanged


class Hit(msgspec.Struct):
    user: str
    at: int = 0


class Counts(StatefulProcessor):
    """Counts in ``kept``, and does something with the state that ``more`` declares."""

    def __init__(self, more: Callable[[Any], Any]) -> None:
        self._more = more

    def init(self, handle: Any) -> None:
        self.kept = handle.getValueState("kept", "n INT")
        self.other = self._more(handle)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        before = self.kept.get()
        self.kept.update(((before[0] if before else 0) + len(list(rows)),))
        if self.other is None:
            yield Row(what=f"kept {self.kept.get()}")
        else:
            yield Row(what=f"kept {self.kept.get()} other {self.other.get()}")
            self.other.update(tuple(range(len(self.other.get() or (1, 2)))))

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        return iter(())


def pipeline(more: Callable[[Any], Any], mode: str = "None") -> hr.Pipeline:
    p = hr.Pipeline("t")
    hits = p.inject("hits", hr.sources.Iterable(list, type=Hit, event_time="at"))
    hr.spark.stateful_processor(
        hits, "user", Counts(more), "what STRING", "Update", mode, name="counts"
    )
    return p


def value(name: str, schema: str, ttl_ms: int | None = None) -> Callable[[Any], Any]:
    return lambda handle: handle.getValueState(name, schema, ttl_ms)


def entries(keys: str, values: str) -> Callable[[Any], Any]:
    def declared(handle: Any) -> None:
        handle.getMapState("other", keys, values)

    return declared


def nothing(handle: Any) -> None:
    return None


def deleted(handle: Any) -> None:
    handle.deleteIfExists("other")


def one(t: Any) -> str:
    t.push("hits", Hit("ann"))
    t.step()
    (produced,) = t.outputs("counts")
    return str(produced.value.what)


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [record.getMessage() for record in caplog.records if record.name == "headrace"]
    caplog.clear()
    return found


def test_a_state_variable_may_go_as_in_spark_and_the_start_says_so_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, "headrace")
    with hr.testing.drive(pipeline(value("other", "n INT, at BIGINT"))) as t:
        assert one(t) == "kept (1,) other None"
        t.resume(pipeline=pipeline(nothing))
        (said,) = warnings_of(caplog)
        for part in ("'counts'", "'other' (value (n INT, at BIGINT))", "is kept", "deleteIfExists"):
            assert part in said
        assert one(t) == "kept (2,)"
        t.resume()
        assert warnings_of(caplog) == []
        t.resume(pipeline=pipeline(value("other", "n INT, at BIGINT")))
        assert one(t) == "kept (3,) other (0, 1)"  # it is found again
        t.resume(pipeline=pipeline(nothing))
        assert len(warnings_of(caplog)) == 1


def test_a_state_variable_that_is_deleted_by_name_goes_without_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, "headrace")
    with hr.testing.drive(pipeline(value("other", "n INT, at BIGINT"))) as t:
        assert one(t) == "kept (1,) other None"
        t.resume(pipeline=pipeline(deleted))
        assert one(t) == "kept (2,)"
    assert warnings_of(caplog) == []


def test_another_name_begins_empty(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "headrace")
    with hr.testing.drive(pipeline(value("other", "n INT, at BIGINT"))) as t:
        assert one(t) == "kept (1,) other None"
        t.resume(pipeline=pipeline(value("another", "n INT, at BIGINT")))
        assert one(t) == "kept (2,) other None"
        assert one(t) == "kept (3,) other (0, 1)"
    assert len(warnings_of(caplog)) == 1


@pytest.mark.parametrize(
    ("schema", "read"),
    [
        ("n INT, at BIGINT, more DOUBLE", "(0, 1, None)"),
        ("more DOUBLE, n INT, at BIGINT", "(None, 0, 1)"),
        ("n BIGINT, at BIGINT", "(0, 1)"),
        ("n INT, at SMALLINT", "(0, 1)"),
    ],
)
def test_fields_may_be_added_and_integers_may_have_another_size(schema: str, read: str) -> None:
    with hr.testing.drive(pipeline(value("other", "n INT, at BIGINT"))) as t:
        one(t)
        t.resume(pipeline=pipeline(value("other", schema)))
        assert one(t) == f"kept (2,) other {read}"


@pytest.mark.parametrize(
    ("before", "after", "shown"),
    [
        (
            value("other", "n INT, at BIGINT"),
            value("other", "n INT"),
            ["'other' was value (n INT, at BIGINT), is value (n INT)"],
        ),
        (
            value("other", "n INT, at BIGINT"),
            value("other", "n STRING, at BIGINT"),
            ["is value (n STRING, at BIGINT)"],
        ),
        (
            value("other", "n INT, at BIGINT"),
            lambda handle: handle.getListState("other", "n INT, at BIGINT"),
            ["'other' was value (n INT, at BIGINT), is list (n INT, at BIGINT)"],
        ),
        (
            entries("k STRING", "v INT"),
            entries("k INT", "v INT"),
            ["'other' was map (k STRING → v INT), is map (k INT → v INT)"],
        ),
        (
            value("other", "n INT, at BIGINT"),
            value("other", "n INT, at BIGINT", 1_000),
            ["is value (n INT, at BIGINT) with ttl"],
        ),
    ],
)
def test_what_cannot_be_read_is_refused_in_the_words_of_a_processor(
    before: Any, after: Any, shown: list[str]
) -> None:
    with hr.testing.drive(pipeline(before, "processingTime")) as t:
        t.push("hits", Hit("ann"))
        t.step()
        with pytest.raises(SchemaChanged) as refused:
            t.resume(pipeline=pipeline(after, "processingTime"))
    said = str(refused.value)
    for part in [*shown, "another name", "initialState"]:
        assert part in said, said
    for foreign in ("version=", "upgrade=", "Removed", "forget", "Of_state", "None = None"):
        assert foreign not in said, said


@pytest.mark.parametrize("after", ["eventTime", "None"])
def test_another_time_mode_is_refused_since_timers_may_be_pending(after: str) -> None:
    with hr.testing.drive(pipeline(nothing, "processingTime")) as t:
        one(t)
        with pytest.raises(SchemaChanged, match="pass timeMode as it was") as refused:
            t.resume(pipeline=pipeline(nothing, after))
    assert "version=" not in str(refused.value)
