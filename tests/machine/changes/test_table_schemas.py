"""Columns of tables, and records that wait, change their shape: added, dropped, upgraded, or refused."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

import headrace as hr
from headrace.errors import PipelineError, SchemaChanged, UserCodeError
from headrace.testing import Harness, drive
from tests.machine.changes.test_state_schemas import SETTINGS, Item, idle_steps, push


class Sums(hr.ColumnarComputation):
    """The sum of each key, and each number that came."""

    sums = hr.TableState({"n": int, "said": str})
    each = hr.TableState({}, sub={"n": int})

    def process_batch(self, ctx: Any, batch: Any) -> None:
        rows = self.sums.at(batch.keys)
        rows.upsert(n=rows["n"] + batch.sum("n"), said="first")
        self.each.at(batch.row_keys, n=batch["n"]).upsert()


class Added(Sums):
    sums = hr.TableState(  # type: ignore[assignment]
        {"n": int, "said": str, "most": float, "name": str}, added={"most": 0.5, "name": "?"}
    )

    def process_batch(self, ctx: Any, batch: Any) -> None:
        rows = self.sums.at(batch.keys)
        rows.upsert(n=rows["n"] + batch.sum("n"), most=rows["most"] + 1.0)


class Dropped(Sums):
    sums = hr.TableState({"n": int}, dropped=["said"])  # type: ignore[assignment]

    def process_batch(self, ctx: Any, batch: Any) -> None:
        rows = self.sums.at(batch.keys)
        rows.upsert(n=rows["n"] + batch.sum("n"))


def halves(old: dict[str, Any]) -> dict[str, Any]:
    return {"n": old["n"] / 2, "long": np.char.str_len(old["said"].astype(str))}


class Upgraded(Sums):
    sums = hr.TableState({"n": float, "long": int}, version=2, upgrade={1: halves})  # type: ignore[assignment]

    def process_batch(self, ctx: Any, batch: Any) -> None:
        rows = self.sums.at(batch.keys)
        rows.upsert(n=rows["n"] + batch.sum("n"), long=rows["long"])


def drawn(computation: Any) -> hr.Pipeline:
    pipeline = hr.Pipeline("tables")
    items = pipeline.inject("items", hr.sources.Iterable([], Item, event_time="at"))
    pipeline.compute("it", computation, keys={items: "key"})
    return pipeline


def stored_by(computation: Any) -> Harness:
    t = drive(drawn(computation), settings=SETTINGS)
    push(t, ("a", 1), ("b", 2), ("a", 3))
    return t


def again(t: Harness, computation: Any) -> None:
    t.resume(pipeline=drawn(computation))


def sums(t: Harness, key: str) -> Any:
    return t.state("it", key)["sums"]


@pytest.mark.parametrize("steps", [0, 6])
def test_an_added_column_has_in_rows_from_before_it_what_is_declared_for_them(steps: int) -> None:
    with stored_by(Sums()) as t:
        again(t, Added())
        idle_steps(t, steps)
        assert sums(t, "b") == {"n": 2, "said": "first", "most": 0.5, "name": "?"}
        push(t, ("a", 5), ("new", 1))
        assert sums(t, "a") == {"n": 9, "said": "first", "most": 1.5, "name": "?"}
        assert sums(t, "new") == {"n": 1, "said": "", "most": 1.0, "name": ""}
        again(t, Added())
        assert sums(t, "a") == {"n": 9, "said": "first", "most": 1.5, "name": "?"}
        assert sums(t, "b") == {"n": 2, "said": "first", "most": 0.5, "name": "?"}
        assert t.state("it", "a")["each"] == {1: {}, 3: {}}


@pytest.mark.parametrize("steps", [0, 6])
def test_a_column_is_dropped_by_name_only_and_does_not_come_back(steps: int) -> None:
    class Without(Dropped):
        sums = hr.TableState({"n": int})  # type: ignore[assignment]

    class Back(Sums):
        sums = hr.TableState({"n": int, "said": str}, added={"said": ""})  # type: ignore[assignment]

    with stored_by(Sums()) as t:
        with pytest.raises(SchemaChanged, match="column 'said' was removed"):
            again(t, Without())
        again(t, Dropped())
        idle_steps(t, steps)
        push(t, ("a", 5))
        again(t, Without())
        assert (sums(t, "a"), sums(t, "b")) == ({"n": 9}, {"n": 2})
        with pytest.raises(SchemaChanged, match="column 'said' was dropped, and rows may still"):
            again(t, Back())


@pytest.mark.parametrize("steps", [0, 6])
def test_rows_are_upgraded_many_at_a_time_also_to_a_column_of_another_type(steps: int) -> None:
    with stored_by(Sums()) as t:
        again(t, Upgraded())
        idle_steps(t, steps)
        push(t, ("a", 5))
        assert sums(t, "a") == {"n": 7.0, "long": 5}
        assert sums(t, "b") == {"n": 1.0, "long": 5}
        t.crash()
        again(t, Upgraded())
        push(t, ("b", 5))
        assert sums(t, "b") == {"n": 6.0, "long": 5}
        with pytest.raises(SchemaChanged, match="stored as version 2, and the code's is 1"):
            again(t, Sums())


def test_rows_that_are_given_up_leave_nothing_behind() -> None:
    class Anew(Upgraded):
        sums = hr.TableState({"n": float, "long": int}, version=2, upgrade={1: None})  # type: ignore[assignment]
        each = hr.TableState({}, sub={"n": int}, version=2, upgrade={1: None})

    with stored_by(Sums()) as t:
        again(t, Anew())
        idle_steps(t, 6)
        assert (sums(t, "b"), t.state("it", "b")["each"]) == (None, {})
        assert t.keys("it") == ["other"]


def test_rows_that_move_are_upgraded_as_they_would_be_where_they_were() -> None:
    with drive(drawn(Sums()), settings=SETTINGS) as t:
        push(t, *((f"k{n}", 2 * n) for n in range(40)))
        again(t, Upgraded())
        move = t.rescale(workers=5, strategy=hr.batched(4))
        push(t, ("k3", 1))
        move.wait()
        found = {key: sums(t, key)["n"] for key in t.keys("it")}
        assert found == {f"k{n}": float(n + (n == 3)) for n in range(40)}


def test_a_value_for_older_rows_that_is_no_number_is_the_same_at_the_next_start() -> None:
    class NoNumber(Added):
        sums = hr.TableState(  # type: ignore[assignment]
            {"n": int, "said": str, "most": float}, added={"most": float("nan")}
        )

    with stored_by(Sums()) as t:
        again(t, NoNumber())
        again(t, NoNumber())
        assert np.isnan(sums(t, "b")["most"])


def test_an_upgrade_of_rows_that_lack_columns_is_told_the_table_as_it_was() -> None:
    def total(old: dict[str, Any]) -> dict[str, Any]:
        return {"n": old["n"] + old["most"], "long": 0}

    class Untold(Upgraded):
        sums = hr.TableState({"n": float, "long": int}, version=2, upgrade={1: total})  # type: ignore[assignment]

    class Told(Upgraded):
        sums = hr.TableState(  # type: ignore[assignment]
            {"n": float, "long": int}, version=2, upgrade={1: (Added.sums, total)}
        )

    with stored_by(Sums()) as t:
        again(t, Added())
        push(t, ("a", 5))
        with pytest.raises(SchemaChanged, match="does not name the table as it was"):
            again(t, Untold())
        again(t, Told())
        assert (sums(t, "a")["n"], sums(t, "b")["n"]) == (10.5, 2.5)


def test_an_upgrade_of_rows_that_fails_is_the_users_error() -> None:
    class Fails(Upgraded):
        sums = hr.TableState(  # type: ignore[assignment]
            {"n": float, "long": int}, version=2, upgrade={1: lambda old: {"n": old["nothing"]}}
        )

    with stored_by(Sums()) as t:
        with pytest.raises(UserCodeError, match="from version 1 to 2 failed: KeyError") as caught:
            again(t, Fails())
        assert "computation 'it', table 'sums'" in str(caught.value)
        assert 'old["nothing"]' in str(caught.value)
        again(t, Upgraded())
        assert sums(t, "b") == {"n": 1.0, "long": 5}


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        (hr.TableState({"n": float, "said": str}), "column 'n' was int64, is double"),
        (hr.TableState({"n": int, "said": str, "m": int}), "'m' was added without a value"),
        (hr.TableState({"n": int, "said": str}, ttl="1h"), "ttl was none, is event_time"),
        (hr.TableState({"n": int, "said": str}, sub={"m": int}), "sub columns cannot change"),
        (
            hr.TableState({"n": int, "said": str}, sub={"m": int}, version=2, upgrade={1: None}),
            "sub columns cannot change",
        ),
    ],
)
def test_other_changes_of_columns_are_refused_with_the_difference(declared: Any, said: str) -> None:
    other = type("Other", (Sums,), {"sums": declared})
    with stored_by(Sums()) as t, pytest.raises(SchemaChanged, match=said):
        again(t, other())


@pytest.mark.parametrize(
    "declared",
    [
        hr.TableState({"n": int}, added={"m": 1}),
        hr.TableState({"n": int}, added={"n": "x"}),
        hr.TableState({"n": int}, dropped=["n"]),
    ],
)
def test_a_table_whose_changes_make_no_sense_is_refused_as_it_is_drawn(declared: Any) -> None:
    with pytest.raises(PipelineError):
        drawn(type("Other", (Sums,), {"sums": declared})())


# -- records that wait ------------------------------------------------------------------------


class Note(msgspec.Struct):
    n: int


class LongNote(msgspec.Struct):
    n: int
    said: str = "nothing"
    other: int | None = None


class Later(hr.Computation):
    """Sends itself each record for later."""

    later = hr.Posted(Note)
    out = hr.Output(str)
    made: Any = Note

    def process_record(self, ctx: Any, record: hr.Record) -> None:
        if record.stream == "later":
            ctx.produce("out", str(msgspec.to_builtins(record.value)))
        else:
            ctx.post(record.timestamp_us + 1_000, self.made(record.value.n))


class LongerLater(Later):
    later = hr.Posted(LongNote)
    made = LongNote


class OtherLater(Later):
    later = hr.Posted(Item)


def posting(computation: Any) -> hr.Pipeline:
    pipeline = hr.Pipeline("posts")
    items = pipeline.inject("items", hr.sources.Iterable([], Item, event_time="at"))
    it = pipeline.compute("it", computation, keys={items: "key"})
    pipeline.sink("out", it, hr.sinks.Console())
    return pipeline


@pytest.mark.parametrize("steps", [0, 6])
def test_posts_from_before_a_field_was_added_arrive_with_its_default(steps: int) -> None:
    with drive(posting(Later()), settings=SETTINGS) as t:
        push(t, ("a", 1))
        t.resume(pipeline=posting(LongerLater()))
        idle_steps(t, steps)
        push(t, ("a", 2))
        with pytest.raises(SchemaChanged, match="column 'said' was removed; column 'other' was"):
            t.resume(pipeline=posting(Later()))
        with pytest.raises(SchemaChanged, match="'later' was posted"):
            t.resume(pipeline=posting(OtherLater()))
        t.resume(pipeline=posting(LongerLater()))
        t.end()
        t.run()
        assert [o.value for o in t.outputs("out") if o.key == "a"] == [
            "{'n': 1, 'said': 'nothing', 'other': None}",
            "{'n': 2, 'said': 'nothing', 'other': None}",
        ]


class Pass(hr.Computation):
    """Hands on what comes."""

    out = hr.Output(Item)

    def process_record(self, ctx: Any, record: hr.Record) -> None:
        ctx.produce("out", record.value)


class LongItem(Item, frozen=True):
    said: str = "nothing"


class PassLong(Pass):
    out = hr.Output(LongItem)

    def process_record(self, ctx: Any, record: hr.Record) -> None:
        ctx.produce("out", LongItem(record.value.key, record.value.n, said="more"))


class Sequence(hr.Computation):
    """Says what came, in order."""

    out = hr.Output(str)

    def process_record(self, ctx: Any, record: hr.Record) -> None:
        ctx.produce("out", str(msgspec.to_builtins(record.value)))


def in_order(first: Any) -> hr.Pipeline:
    pipeline = hr.Pipeline("order")
    items = pipeline.inject("items", hr.sources.Iterable([], Item, event_time="at"))
    passed = pipeline.compute("pass", first, keys={items: "key"})
    it = pipeline.compute("it", Sequence(), keys={passed: "key"}, ordered=True)
    pipeline.sink("out", it, hr.sinks.Console())
    return pipeline


def test_records_that_wait_for_their_turn_get_the_default_of_an_added_field() -> None:
    with drive(in_order(Pass()), settings=SETTINGS) as t:
        push(t, ("a", 1))
        t.resume(pipeline=in_order(PassLong()))
        push(t, ("a", 2))
        t.end()
        t.run()
        assert [o.value for o in t.outputs("out")] == [
            "{'key': 'a', 'n': 1, 'at': 0, 'said': 'nothing'}",
            "{'key': 'a', 'n': 2, 'at': 0, 'said': 'more'}",
        ]
