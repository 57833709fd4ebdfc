"""A checkpoint can be read without the user's code, whole or in parts, at any step that is kept."""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.checkpoints.catalog import Checkpoints
from headrace.checkpoints.checkpoint import Checkpoint
from headrace.checkpoints.contents import as_json
from headrace.errors import Expired, NotFound, PipelineError
from headrace.eventtime.timestamps import from_micros
from headrace.ledger.manifest import manifest_name
from headrace.storage import MemoryStore
from tests.support.checkpointed import (
    SECOND,
    UPKEEP,
    Reversed,
    Tables,
    draw,
    driven,
    items,
)


def rows_of(checkpoint: Checkpoint, component: str, section: str, **where: Any) -> list[Any]:
    table = checkpoint.read(component, section, **where)
    times = [n for n in table.column_names if pa.types.is_timestamp(table.schema.field(n).type)]
    for name in times:
        at = table.column_names.index(name)
        table = table.set_column(at, name, table.column(name).cast(pa.int64()))
    return sorted(table.to_pylist(), key=repr)


def everything(checkpoint: Checkpoint, **where: Any) -> dict[tuple[str, str], list[Any]]:
    """Return all rows of a checkpoint that depend on neither steps nor workers."""
    return {
        (name, section): rows_of(checkpoint, name, section, **where)
        for name, of in checkpoint.components.items()
        for section in of.sections
        if section != "workers"
    }


def cells_as_the_code_sees_them(t: Any) -> list[Any]:
    """Return the rows that per-record state should read as, from what a restart would read."""
    found = []
    for key in t.keys("cells"):
        state = t.state("cells", key)

        def row(name: str, kind: str, sub: Any, value: Any, key: Any = key) -> dict[str, Any]:
            text = None if name == "secret" else msgspec.json.encode(value).decode()
            data = Reversed().encode(value) if name == "secret" else None
            kinds = {"state": name, "kind": kind, "sub": sub}
            return {"key": key, **kinds, "value": text, "bytes": data}

        found += [row(name, "value", None, state[name]) for name in ("total", "last", "secret")]
        found += [row("seen", "list", str(n), value) for n, value in enumerate(state["seen"])]
        found += [row("by_n", "map", str(n), value) for n, value in state["by_n"].items()]
    return sorted(found, key=repr)


def test_per_record_state_reads_as_its_code_would_see_it() -> None:
    store = MemoryStore()
    with driven(store) as t:
        checkpoint = Checkpoints(store).open()
        assert rows_of(checkpoint, "cells", "state") == cells_as_the_code_sees_them(t)
        timers = [
            {
                "key": key,
                "timer": timer.name,
                "tag": timer.tag,
                "domain": timer.domain.value,
                "time": timer.time_us,
            }
            for key in t.keys("cells")
            for timer in t.timers("cells", key)
        ]
        read = rows_of(checkpoint, "cells", "timers")
        holds = {row["key"]: row.pop("hold") for row in read if row["timer"] == "check"}
        assert all(row.pop("hold", None) is None for row in read)
        assert read == sorted(timers, key=repr)
        assert all(0 <= hold < 60 * SECOND for hold in holds.values())
        assert holds.keys() == set(t.keys("cells"))


def test_tables_read_as_their_code_would_see_them() -> None:
    store = MemoryStore()
    with driven(store) as t:
        checkpoint = Checkpoints(store).open()
        expected = {key: t.state("tables", key) for key in t.keys("tables")}
        sums = {(r["key0"], r["key1"]): r for r in rows_of(checkpoint, "tables", "table:sums")}
        by_n: dict[Any, Any] = {}
        for row in rows_of(checkpoint, "tables", "table:by_n"):
            by_n.setdefault((row["key0"], row["key1"]), {})[row["n"]] = {"count": row["count"]}
        assert {key: {n: r[n] for n in ("total", "label")} for key, r in sums.items()} == {
            key: state["sums"] for key, state in expected.items()
        }
        assert by_n == {key: state["by_n"] for key, state in expected.items()}
        timers = rows_of(checkpoint, "tables", "timer:due")
        assert {(r["key0"], r["key1"], r["tag"], r["time"]) for r in timers} == {
            (*key, timer.tag, timer.time_us)
            for key in expected
            for timer in t.timers("tables", key)
        }


@settings(max_examples=10)
@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 4)), min_size=2, max_size=8),
    st.sampled_from([1, 4, 32]),
    st.booleans(),
)
def test_any_kept_step_reads_the_same_whatever_the_workers_and_bins(
    script: list[tuple[int, int]], bins: int, groups: bool
) -> None:
    """The same steps, once by one worker in one bin, once by ever other workers."""
    seen: list[dict[int, Any]] = []
    for changing in (False, True):
        store, done, at_steps = MemoryStore(), 0, {}
        t = hr.testing.drive(
            draw(groups),
            workers=1,
            bins=bins if changing else 1,
            storage=store,
            settings=hr.Settings(**UPKEEP),
            clock=SECOND,
        )
        with t:
            for number, (count, workers) in enumerate(script):
                if changing:
                    t.resume(workers=workers)
                t.push_many("items", items(done, count))
                t.step()
                done += count
                at_steps[number] = Checkpoints(store).open().step
            found = Checkpoints(store)
            kept = [n for n, step in at_steps.items() if step in found.versions()]
            assert kept[-1] == len(script) - 1 and (changing or len(kept) >= min(6, len(script)))
            seen.append({n: _plain(everything(found.open(at_steps[n]))) for n in kept})
    for number in seen[0].keys() & seen[1].keys():
        assert seen[0][number] == seen[1][number]


def _plain(found: dict[tuple[str, str], list[Any]]) -> Any:
    """Leave out what waiting records are told apart by: it has the step's number in it."""
    for rows in found.values():
        for row in rows:
            row.pop("sequence", None)
    return {name: sorted(rows, key=repr) for name, rows in found.items()}


@pytest.mark.parametrize("groups", [False, True])
def test_the_bins_of_a_computation_are_all_of_it_and_each_reads_its_own_pieces(
    groups: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.runfiles.format.SMALL_FILE", 0)  # parts are read alone
    monkeypatch.setattr("headrace.runfiles.format._LAST", 24)  # and the footer, too
    monkeypatch.setattr("headrace.runfiles.format.BLOCK_ROWS", 4)
    store = MemoryStore()
    driven(store, groups=groups).close()
    checkpoint = Checkpoints(store).open()
    for component, of in checkpoint.components.items():
        for section in of.sections:
            if section == "workers":
                continue
            stored = "state" if section == "timers" else section
            parts: list[Any] = []
            for partition in checkpoint.partitions(component):
                read: list[tuple[str, int, int]] = []
                watched = Checkpoint(_Watched(store, read), checkpoint.head)
                parts += rows_of(watched, component, section, bins=partition.bin)
                pieces = {
                    (piece.file, piece.offset, piece.length)
                    for piece in partition.pieces
                    if piece.section in (stored, f"whole:{stored}")
                }
                footers = {part for part in read if _is_footer(checkpoint, part, store)}
                assert {*read} - footers == pieces and (footers or not pieces)
            assert sorted(parts, key=repr) == rows_of(checkpoint, component, section)


def _is_footer(checkpoint: Checkpoint, part: tuple[str, int, int], store: MemoryStore) -> bool:
    name, at, _ = part
    (end,) = (
        ref.offset + ref.length
        for ref in checkpoint.files()
        if ref.place == name and ref.offset <= at < ref.offset + ref.length
    )
    size = int.from_bytes(store.read(name, end - 24, 8), "little")
    return at >= end - 24 - size


class _Watched(MemoryStore):
    def __init__(self, inner: MemoryStore, read: list[tuple[str, int, int]]) -> None:
        super().__init__()
        self._inner, self._read = inner, read

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        data = self._inner.read(name, offset, length)
        self._read.append((name, offset, len(data)))
        return data


def test_one_key_is_found_by_its_parts() -> None:
    store = MemoryStore()
    with driven(store) as t:
        checkpoint = Checkpoints(store).open()
        key = t.keys("tables")[3]
        (row,) = rows_of(checkpoint, "tables", "table:sums", key=key)
        assert (row["key0"], row["key1"], row["total"]) == (
            *key,
            t.state("tables", key)["sums"]["total"],
        )
        assert checkpoint.components["tables"].parse_key([str(key[0]), key[1]]) == key
        assert rows_of(checkpoint, "tables", "table:sums", key=(77, "nobody")) == []


@pytest.mark.parametrize("key", ["text", 1, (1, 2, 3), ("u1", 1), (1.0, "u1"), (None, "u1")])
def test_what_is_no_key_of_a_computation_is_refused(key: Any) -> None:
    store = MemoryStore()
    driven(store, steps=1).close()
    with pytest.raises(PipelineError):
        Checkpoints(store).open().read("tables", "table:sums", key=key)


def test_names_that_there_are_not_are_refused_with_those_that_there_are() -> None:
    store = MemoryStore()
    driven(store, steps=1).close()
    checkpoint = Checkpoints(store).open()
    with pytest.raises(PipelineError, match=r"cells, items\.ids, ordered, tables"):
        checkpoint.read("nobody")
    with pytest.raises(PipelineError, match="table:sums, table:by_n"):
        checkpoint.read("tables")
    with pytest.raises(PipelineError, match="state, workers, timers"):
        checkpoint.read("cells", "nothing")
    with pytest.raises(PipelineError, match="names no bin"):
        checkpoint.read("cells", bins="0x2")


def test_a_step_that_is_gone_or_never_was_is_told_apart() -> None:
    store = MemoryStore()
    with pytest.raises(NotFound, match="no pipeline has run"):
        Checkpoints(store).open()
    assert Checkpoints(store).versions() == []
    driven(store, steps=20).close()
    kept = Checkpoints(store).versions()
    assert kept == list(range(kept[0], 21)) and 6 <= len(kept) <= 6 + 2 * UPKEEP["base_every"]
    for looked_at in (Checkpoints(store).open, lambda step: list(Checkpoints(store).verify(step))):
        with pytest.raises(Expired, match="pin a step"):
            looked_at(kept[0] - 1)
        for never in (21, -1):
            with pytest.raises(NotFound, match=f"from {kept[0]} to 20"):
                looked_at(never)
    # (The step behind the second one is a base: with that gone, the newest step cannot be told.)
    for lost in (18, 19):
        store.delete(manifest_name(lost))
        for found in (Checkpoints(store).verify(lost), Checkpoints(store).verify()):
            assert manifest_name(lost) in [one.file for one in found]


def test_a_reader_whose_files_are_cleaned_meanwhile_is_told_so_and_given_nothing() -> None:
    store = MemoryStore()
    with driven(store) as t:
        checkpoint = Checkpoints(store).open(Checkpoints(store).versions()[0])
        for step in range(20):
            t.push_many("items", items(100 + step * 5, 5))
            t.step()
        with pytest.raises(Expired):
            checkpoint.read("cells")
        with pytest.raises(Expired):
            checkpoint.partitions("cells")


def test_components_say_what_they_are_without_their_code() -> None:
    store = MemoryStore()
    driven(store, groups=True).close()
    found = Checkpoints(store).open().components
    assert list(found) == ["cells", "items.ids", "ordered", "tables"]
    tables = found["tables"]
    assert (tables.parallelism, tables.key, tables.group) == (3, ["int64", "string"], "two")
    assert tables.counts.records == 60 and tables.removed is None
    assert tables.state["sums"] == "table [] total:int64, label:string"
    assert tables.input_watermark == -241 * SECOND
    marks = Checkpoints(store).open().watermarks().to_pylist()
    assert [mark["computation"] for mark in marks] == list(found)
    assert marks[3]["input"] == from_micros(-241 * SECOND)


def test_the_columns_of_a_section_are_known_where_it_has_no_rows() -> None:
    store = MemoryStore()
    driven(store).close()
    checkpoint = Checkpoints(store).open()
    for component, of in checkpoint.components.items():
        for section in of.sections:
            schema = checkpoint.schema(component, section)
            assert checkpoint.read(component, section).schema == schema
            assert checkpoint.read(component, section, bins=[]).schema == schema


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers(-(2**63), 2**64 - 1)
        | st.text(max_size=5)
        | st.floats(allow_nan=False, allow_infinity=False),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
        max_leaves=8,
    )
)
def test_values_become_json_that_says_the_same(value: Any) -> None:
    text = as_json(msgspec.msgpack.encode(value))
    assert text is not None and msgspec.json.decode(text) == value


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (float("inf"), '"inf"'),
        ({(1, 2): b"a"}, '[[[1,2],"YQ=="]]'),
        ({3: 4}, "[[3,4]]"),
        (msgspec.msgpack.Ext(5, b"a"), '{"ext":5,"data":"YQ=="}'),
    ],
)
def test_what_json_has_no_words_for_is_still_shown(value: Any, text: str) -> None:
    assert as_json(msgspec.msgpack.encode(value)) == text


def test_bytes_that_are_no_msgpack_are_left_as_they_are() -> None:
    assert as_json(b"\xc1") is None


class TablesOfTwo(Tables):
    """The same, with another shape of its table: one column more, one of another type."""

    sums = hr.TableState(
        {"total": float, "label": str, "more": int},
        version=2,
        upgrade={
            1: (Tables.sums, lambda old: {**old, "total": old["total"] / 2, "more": old["total"]})
        },
    )

    def process_batch(self, ctx: hr.BatchContext, batch: hr.KeyedBatch) -> None:
        if batch.stream != "later":
            self.sums.at(batch.keys).upsert(
                total=batch.sum("n") / 2, label="new", more=batch.counts
            )


def test_rows_of_older_shapes_are_read_beside_those_of_newer_ones() -> None:
    store = MemoryStore()
    driven(store, steps=3).close()
    old = rows_of(Checkpoints(store).open(), "tables", "table:sums")
    drawing = draw()
    drawing.replace("tables", TablesOfTwo())
    with hr.testing.drive(drawing, storage=store, clock=2 * 10**15 - 1) as t:
        t.push_many("items", items(500, 1))
        t.step()
        checkpoint = Checkpoints(store).open()
        rows = rows_of(checkpoint, "tables", "table:sums")
        assert len(rows) == len(old) and list(Checkpoints(store).verify()) == []
        columns = set(checkpoint.schema("tables", "table:sums").names)
        assert columns >= {"key0", "key1", "total", "label", "more", "column:total"}
        was = {(row["key0"], row["key1"]): row["total"] for row in old}
        kept = {(r["key0"], r["key1"]): r["column:total"] for r in rows if r["total"] is None}
        assert kept and kept.items() <= was.items()
        (new,) = rows_of(checkpoint, "tables", "table:sums", key=(500 % 9, "u2"))
        assert new["total"] == t.state("tables", (500 % 9, "u2"))["sums"]["total"]
