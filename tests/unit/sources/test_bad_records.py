"""What a source cannot read is skipped and counted, or sent to a stream; the rest is read in order."""

from __future__ import annotations

import csv
import dataclasses
import json
import tempfile
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet
import pytest
from click.testing import CliRunner
from hypothesis import example, given, settings
from hypothesis import strategies as st

import headrace as hr
import headrace.errors
from headrace.cli import main
from headrace.errors import BadInput, PipelineError
from headrace.ledger.ledger import Ledger
from headrace.protocol.plan import StepPlan, TaskReport
from headrace.runners.inline import InlineRunner
from headrace.schema.equality import same_rows
from headrace.sources import Files, Inbox, Iterable, Limit, Source
from headrace.sources.formats import JsonLines
from headrace.storage import MemoryStore
from headrace.testing import drive
from tests.support.pipelines import Collected, run_inline
from tests.support.values import same
from tests.unit.sources.formats.test_odd_json import LINES, Bad, Mapped, Plain, expected, is_lenient


class Row(msgspec.Struct):
    at: int
    n: int
    many: list[int] | None = None


class Keep(hr.Computation):
    """Passes on what it reads."""

    deterministic = True
    out = hr.Output(Row)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        ctx.produce("out", record.value)


def pipeline(source: Source, on_error: Any, collected: Collected, **options: Any) -> hr.Pipeline:
    p = hr.Pipeline("sifted")
    rows = p.inject("rows", source, on_error=on_error, **options)
    kept = p.compute("keep", Keep(), keys={rows: "at"}, late="process")
    p.sink("out", kept["out"], collected.sink("out"))
    if on_error == "dead_letter":
        p.sink("dead", rows["dead_letter"], collected.sink("dead"))
    return p


def run(
    source: Source, on_error: str, **options: Any
) -> tuple[list[Any], list[tuple[str, str, str]], int]:
    """Return n of the good records in order, the letters by place, and how many were skipped."""
    collected = Collected()
    store = options.pop("store", None) or MemoryStore()
    run_inline(pipeline(source, on_error, collected), store=store, **options)
    head = Ledger(store).open()
    assert head is not None
    steps = collected.rows()
    good = [row[3] for rows in steps.get("out", []) for row in rows]
    letters = sorted(row[2:] for rows in steps.get("dead", []) for row in rows)
    return good, letters, head.skipped.get("rows", 0)


LINE = st.one_of(
    st.sampled_from(
        [
            '{"at": 1, "n": "x"}',
            '{"at": 1, "n": 1, "many": [1, null]}',
            '{"at": "never", "n": 1}',
            '{"at": 1',
            '{"n": 1}',
            "[]",
            '{"at": 1, "n": null}',
            '{"at": 1, "n": 1}{"at": 1, "n": 1}',
            '{"at": 400000000000000000, "n": 1}',
            '{"at": 1, "n": 1, "n": 2}',
            "é\udcff",
            "x" * 3000,
        ]
    ),
    st.just(""),
    st.integers(0, 1000).map(lambda n: json.dumps({"at": 1, "n": n})),
    st.integers(0, 1000).map(lambda n: json.dumps({"at": 1, "n": n, "many": [n]})),
)


def number_of(line: str) -> int | None:
    """Return n of a line that is a Row by Python's json module; None for one that is none."""
    try:
        pairs = json.loads(line, object_pairs_hook=list)
        line.encode()
    except ValueError:
        return None
    found = dict(pairs)
    if len(found) < len(pairs) or type(found.get("n")) is not int or found.get("at") != 1:
        return None
    many = found.get("many")
    return None if many is not None and None in many else found["n"]


class Numbered(msgspec.Struct):
    n: int


class KeepNumber(hr.Computation):
    """Passes on the numbers that it reads."""

    deterministic = True
    out = hr.Output(int)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        ctx.produce("out", record.value.n)


BROKEN = [
    "[]",
    "null",
    "7",
    '{"at": 1',
    "x" * 300,
    '{"n": ' + "[" * 401 + "]" * 401 + "}",
    "é\udcff",
]


@given(
    lines=st.lists(
        st.sampled_from(BROKEN) | st.integers(0, 9).map(lambda n: f'{{"at": 1, "n": {n}}}'),
        min_size=1,
    ).filter(lambda lines: not set(lines) <= set(BROKEN))
)
def test_the_type_of_the_event_time_is_inferred_from_the_lines_that_can_be_read(
    lines: list[str],
) -> None:
    bad = [at for at, line in enumerate(lines, 1) if line in BROKEN]
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "rows.jsonl"
        path.write_bytes("".join(f"{x}\n" for x in lines).encode("utf-8", "surrogateescape"))
        store, collected = MemoryStore(), Collected()
        p = hr.Pipeline("inferred")
        source = Files(path, event_time="at", time_unit="s", type=Numbered)
        rows = p.inject("rows", source, on_error="dead_letter")
        kept = p.compute("keep", KeepNumber(), keys={rows: "n"}, late="process")
        p.sink("out", kept["out"], collected.sink("out"))
        p.sink("dead", rows["dead_letter"], collected.sink("dead"))
        run_inline(p, store=store)
        steps = collected.rows()
        found = sorted(row[-1] for step in steps.get("out", []) for row in step)
        assert found == sorted(json.loads(line)["n"] for line in lines if line not in BROKEN)
        places = sorted(
            int(str(row[2]).rpartition("line ")[2])
            for step in steps.get("dead", [])
            for row in step
        )
        assert places == bad


def test_if_no_line_can_be_read_the_type_of_the_event_time_is_unknown(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("[1]\nnull\n")
    with pytest.raises(
        BadInput, match="no line can be read: it is not an object: it is an array"
    ) as caught:
        Files(tmp_path / "rows.jsonl", event_time="at", type=Numbered)
    assert "give the type a field for the event time" in str(caught.value)


@settings(max_examples=20, deadline=None)
@given(
    lines=st.lists(LINE, max_size=16),
    rows=st.integers(2, 9),
    workers=st.integers(1, 3),
    exchange=st.sampled_from(["driver", "host"]),
    twice=st.booleans(),
)
def test_good_lines_are_read_in_order_in_any_steps_and_bad_ones_are_letters_once(
    lines: list[str], rows: int, workers: int, exchange: str, twice: bool
) -> None:
    good = [n for line in lines if line and (n := number_of(line)) is not None]
    bad = [at for at, line in enumerate(lines, 1) if line and number_of(line) is None]
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "rows.jsonl"
        path.write_bytes("".join(f"{x}\n" for x in lines).encode("utf-8", "surrogateescape"))
        how: Any = {"rows": rows, "workers": workers, "exchange": exchange}
        if twice and exchange == "driver":
            how["runner"] = Forgetful()
        found, letters, skipped = run(
            Files(path, event_time="at", type=Row, time_unit="us"), "dead_letter", **how
        )
        assert found == good
        assert skipped == len(bad)
        wanted = sorted((f"{path}, line {at}", shown(lines[at - 1])) for at in bad)
        assert [(place, text) for place, text, _ in letters] == wanted
        assert all(error for _, _, error in letters)
        again = run(Files(path, event_time="at", type=Row, time_unit="us"), "skip", rows=rows)
        assert again == (good, [], len(bad))


def shown(line: str) -> str:
    text = line.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return text if len(text) <= 2000 else text[:1999] + "…"


@pytest.mark.parametrize("kind", [Plain, Mapped])
@settings(max_examples=80, deadline=None)
@given(st.lists(LINES, min_size=1, max_size=6), st.integers(1, 6))
@example(['{"at": 1, "many": [', '{"at": 1}]}', '{"at": 1, "i": 7}'], 3)
@example(['{"at": 1}{"at": 1}', '{"at": 1, "i": 7}'], 2)
@example(["\x0c", '{"at": 1}', "null"], 3)
@example(['{"at": 1, "f": -0}', '{"at": 1, "d": []}'], 1)
def test_odd_lines_are_sifted_as_pythons_json_says(kind: Any, lines: list[str], rows: int) -> None:
    if any("\n" in line for line in lines):
        return
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "odd.jsonl"
        path.write_bytes("".join(f"{x}\n" for x in lines).encode("utf-8", "surrogatepass"))
        schema = {"at": int, **{f.name: f.type for f in msgspec.structs.fields(kind)}}
        source = Files(path, event_time="at", schema=schema)
        found, bad = sifted(source, rows)
    wanted, wrong = [], []
    for number, line in enumerate(lines, 1):
        try:
            value = expected(line, kind)
            if value is not None:
                if is_lenient(line, None) and f"line {number}" in " ".join(bad):
                    wrong.append(number)
                    continue
                wanted.append(value)
        except Bad:
            wrong.append(number)
    assert [place.rpartition(" ")[2] for place in bad] == [str(number) for number in wrong]
    assert len(found) == len(wanted)
    for row, want in zip(found, wanted, strict=True):
        assert all(same(getattr(row, name), value) for name, value in want.items()), (row, want)


def sifted(source: Files, rows: int) -> tuple[list[Any], list[str]]:
    """Return a source's good records, and the places of the others, a few rows a step."""
    values, found, bad = source.values(), [], []
    position: Any = source.start()
    while (offer := source.offer(position, Limit(rows, 1 << 20))) is not None:
        for split in source.splits(position, offer.end):
            table, letters = source.sift(split)
            again = source.sift(split)
            assert again.bad == letters and (table is None or same_rows(again.table, table))  # type: ignore[arg-type]
            if table is not None:
                found += values.to_python([c.combine_chunks() for c in table.columns[1:]])
            bad += [letter.place for letter in letters]
        position = offer.end
        if offer.final:
            break
    return found, bad


class Forgetful(InlineRunner):
    """Loses a report of every other try, so that each step is run again."""

    tries = 0

    def run(self, plan: StepPlan) -> list[TaskReport]:
        self.tries += 1
        reports = super().run(plan)
        return reports[: -(self.tries % 2)] if self.tries % 2 else reports


CSV_LINES = st.lists(
    st.one_of(
        st.integers(0, 999).map(lambda n: f"1,{n}"),
        st.sampled_from(
            ["1", "1,2,3", "1,x", "1,", ",5", "1,1.5", "1,99999999999999999999", '1,"7"']
        ),
    ),
    max_size=30,
)


@settings(max_examples=50, deadline=None)
@given(CSV_LINES, st.integers(1, 40))
def test_lines_of_csv_are_sifted(lines: list[str], rows: int) -> None:
    def n(line: str) -> int | None:
        ((at, *rest),) = csv.reader([line])
        good = len(rest) == 1 and at == "1" and rest[0].isdigit() and len(rest[0]) < 19
        return int(rest[0]) if good else None

    class Pair(msgspec.Struct):
        at: int
        n: int

    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "rows.csv"
        path.write_text("at,n\n" + "".join(f"{line}\n" for line in lines))
        source = Files(path, event_time="at", type=Pair, time_unit="us")
        found, bad = sifted(source, rows)
    assert [row.n for row in found] == [n(line) for line in lines if n(line) is not None]
    assert bad == [f"{path}, line {at}" for at, x in enumerate(lines, 2) if n(x) is None]


@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.one_of(st.none(), st.just(2**63), st.integers(0, 99)), max_size=30),
    st.integers(1, 40),
)
def test_rows_of_parquet_are_sifted(numbers: list[int | None], rows: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "rows.parquet"
        table = pa.table(
            {"at": pa.array([1] * len(numbers), pa.int64()), "n": pa.array(numbers, pa.uint64())}
        )
        pa.parquet.write_table(table, path, row_group_size=7)
        source = Files(path, event_time="at", type=Row)
        found, bad = sifted(source, rows)
    good = [number for number in numbers if number is not None and number < 2**63]
    assert [row.n for row in found] == good
    wrong = [at for at, x in enumerate(numbers, 1) if x is None or x >= 2**63]
    assert bad == [f"{path}, row {at}" for at in wrong]


def test_a_row_of_parquet_is_shown_as_json(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    table = pa.table({"at": pa.array([1, 1]), "n": pa.array([2, None], pa.int64())})
    pa.parquet.write_table(table, path)
    (letter,) = run(Files(path, event_time="at", type=Row), "dead_letter")[1]
    assert letter[:2] == (f"{path}, row 2", '{"at":1,"n":null}')
    assert "null" in letter[2]


@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.one_of(st.integers(0, 99), st.sampled_from(["x", 1.5, None])), max_size=20),
    st.integers(1, 30),
)
def test_items_of_an_iterable_are_sifted(numbers: list[Any], rows: int) -> None:
    items = [Row(1, n) for n in numbers]
    found, letters, skipped = run(Iterable(items, Row, event_time="at"), "dead_letter", rows=rows)
    assert found == [n for n in numbers if type(n) is int]
    wrong = [(at, n) for at, n in enumerate(numbers, 1) if type(n) is not int]
    wanted = [
        (f"item {at}", json.dumps({"at": 1, "n": n, "many": None}, separators=(",", ":")))
        for at, n in wrong
    ]
    assert [letter[:2] for letter in letters] == sorted(wanted)
    assert skipped == len(wrong)
    if wrong:
        with pytest.raises(BadInput, match=r"item \d+: Row"):
            run(Iterable(items, Row, event_time="at"), "stop", rows=100)


@pytest.mark.parametrize("when", [2**70, -(2**70), True, 1.5, "noon", None, datetime(2024, 1, 1)])  # noqa: DTZ001
def test_an_event_time_that_is_none_is_that_of_a_bad_item(when: Any) -> None:
    items = [Row(1, 1), Row(1, 2), Row(1, 3)]

    def source() -> Iterable:
        return Iterable(items, Row, event_time=lambda item: when if item.n == 2 else item.at)

    good, letters, skipped = run(source(), "dead_letter")
    assert (good, [place for place, _, _ in letters], skipped) == ([1, 3], ["item 2"], 1)
    with pytest.raises(BadInput, match="the event time of an item cannot be read") as raised:
        run(source(), "stop")
    assert raised.value.place.startswith("item 2")


def test_what_is_wrong_with_more_than_a_record_stops_the_pipeline(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("at,m\n1,2\n")
    schema = {"at": int, "n": int}
    source = Files(tmp_path / "a.csv", event_time="at", schema=schema, time_unit="us")
    with pytest.raises(BadInput, match="no column 'n'"):
        run(source, "skip")
    good = pa.table({"at": [1], "n": [1]})
    pa.parquet.write_table(good, tmp_path / "b.parquet")
    data = bytearray((tmp_path / "b.parquet").read_bytes())
    data[4:40] = bytes(36)
    (tmp_path / "b.parquet").write_bytes(bytes(data))
    with pytest.raises(hr.errors.HeadraceError):
        run(Files(tmp_path / "b.parquet", event_time="at", type=Row), "skip")


@dataclasses.dataclass
class Checked:
    at: int
    n: int

    def __post_init__(self) -> None:
        if self.n < 0:
            raise RuntimeError(f"{self.n} is below zero")


def test_a_line_of_which_no_record_can_be_made_is_bad_by_itself(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"at": 1, "n": 1}\n{"at": 2, "n": -1}\n{"at": 3, "n": 3}\n')
    source = Files(path, type=Checked, event_time="at")
    offer = source.offer(source.start(), Limit(9, 999))
    assert offer is not None
    (split,) = source.splits(source.start(), offer.end)
    with pytest.raises(BadInput, match="below zero") as caught:
        source.read(split)
    assert "line 2" in str(caught.value)
    sifted = source.sift(split)
    assert sifted.table is not None
    assert sifted.table.column("n").to_pylist() == [1, 3]
    assert [bad.place.rpartition(" ")[2] for bad in sifted.bad] == ["2"]


def test_a_source_that_cannot_sift_is_refused(tmp_path: Path) -> None:
    p = hr.Pipeline("refused")
    with pytest.raises(PipelineError, match="in vain"):
        p.inject("rows", Inbox(tmp_path, type=Row, event_time="at"), on_error="skip")
    with pytest.raises(PipelineError, match="on_error"):
        p.inject("rows", Iterable([], Row, event_time="at"), on_error="never")  # type: ignore[arg-type]


def test_a_stream_without_letters_says_what_to_do() -> None:
    p = hr.Pipeline("refused")
    rows = p.inject("rows", Iterable([], Row, event_time="at"))
    with pytest.raises(PipelineError, match="on_error='dead_letter'"):
        rows["dead_letter"]


class Tell(hr.Computation):
    out = hr.Output(str)

    def process_record(self, ctx: hr.Context, record: hr.Record[hr.BadRecord]) -> None:
        ctx.produce("out", f"{record.value.place} at {record.timestamp_us}")


@pytest.mark.parametrize("key", ["place", "key"])
def test_a_computation_can_read_the_letters_and_none_is_late(tmp_path: Path, key: str) -> None:
    path = tmp_path / "rows.jsonl"
    lines = [f'{{"at": {n}, "n": {n}}}' for n in range(1, 40)]
    lines[5] = lines[20] = lines[38] = "bad"
    path.write_text("".join(f"{line}\n" for line in lines))
    collected = Collected()
    p = pipeline(
        Files(path, event_time="at", type=Row, time_unit="s"), "dead_letter", collected, ids="n"
    )
    rows = p.injectors["rows"].stream["dead_letter"]
    told = p.compute("told", Tell(), keys={rows: key})
    p.sink("told", told["out"], collected.sink("told"))
    store = MemoryStore()
    run_inline(p.copy(), store=store, rows=4, workers=2)
    texts = [row[2] for step in collected.rows()["told"] for row in step]
    assert [text.rpartition(" at ")[0] for text in texts] == [
        f"{path}, line {number}" for number in (6, 21, 39)
    ]
    head = Ledger(store).open()
    assert head is not None and head.counts["told"].late == 0 and head.skipped == {"rows": 3}


def test_letters_go_with_the_last_reader_of_their_injector() -> None:
    collected = Collected()
    p = pipeline(Iterable([], Row, event_time="at"), "dead_letter", collected)
    other = p.inject("other", Iterable([], Row, event_time="at"))
    p.compute("others", Keep(), keys={other: "at"})
    with pytest.raises(PipelineError, match="sink 'dead'"):
        p.remove("keep", sinks=["out"])
    p.remove("keep", sinks=["out", "dead"])
    assert list(p.nodes) == ["others"] and list(p.injectors) == ["other"]


def test_the_command_line_shows_how_many_were_skipped(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"at": 1, "n": 1}\nbad\n{"at": 1, "n": "x"}\n')
    (tmp_path / "flow.py").write_text(
        "import headrace as hr\n"
        "from tests.unit.sources.test_bad_records import Keep, Row\n"
        "def pipeline():\n"
        "    p = hr.Pipeline('sifted')\n"
        f"    source = hr.sources.Files({str(tmp_path / 'rows.jsonl')!r}, event_time='at', type=Row,\n"
        "                              time_unit='us')\n"
        "    rows = p.inject('rows', source, on_error='dead_letter')\n"
        "    p.compute('keep', Keep(), keys={rows: 'at'})\n"
        f"    p.sink('dead', rows['dead_letter'], hr.sinks.Files({str(tmp_path / 'dead')!r}))\n"
        "    return p\n"
    )
    storage = str(tmp_path / "storage")

    def call(*words: str) -> str:
        found = CliRunner().invoke(main, [*words])
        assert found.exit_code == 0, found.output
        return found.output

    ran = call("run", str(tmp_path / "flow.py"), "--storage", storage, "--runner", "inline")
    assert "skipped 2" in ran
    status = call("status", "--storage", storage)
    assert "injector rows: ended" in status and "2 skipped" in status
    assert "dead letters of rows: 2" in status
    facts = json.loads(call("status", "--storage", storage, "--output", "json"))
    assert facts["injectors"]["rows"]["skipped"] == 2
    assert "2 records could not be read" in call("top", "--storage", storage, "--once")
    letters = [
        json.loads(line)
        for file in sorted((tmp_path / "dead").glob("*.jsonl"))
        for line in file.read_text().splitlines()
    ]
    assert sorted(letter["text"] for letter in letters) == ["bad", '{"at": 1, "n": "x"}']


def test_many_bad_lines_are_read_a_bounded_number_of_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count, every = 4_096, 16
    lines = [f'{{"at": {n}, "n": {n}}}' for n in range(count)]
    lines[::every] = [f'{{"at": {n}, "n": 1' for n in range(0, count, every)]
    lines[5::every] = ['{"at": "no", "n": 1}'] * len(lines[5::every])
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(lines) + "\n")
    source = Files(path, event_time="at", type=Row, time_unit="us")
    source.values()
    parsed: list[int] = []
    whole = JsonLines.parse

    def parse(self: JsonLines, opened: Any, data: bytes, wanted: Any) -> pa.Table:
        parsed.append(len(data))
        return whole(self, opened, data, wanted)

    monkeypatch.setattr(JsonLines, "parse", parse)
    found, bad = sifted(source, count)
    assert len(bad) == 2 * count // every and len(found) == count - len(bad)
    assert sum(parsed) <= 2 * 2 * path.stat().st_size  # (it was sifted twice)


def test_a_type_is_named_as_it_is_declared(tmp_path: Path) -> None:
    class Named(msgspec.Struct):
        at: int
        s: str
        t: str | None = None

    cases = [
        ('{"at": 1, "s": 1}', "Expected `str`, got `int` - at `$.s`"),
        ('{"at": 1, "s": "", "t": 1}', "Expected `str | null`, got `int` - at `$.t`"),
    ]
    for line, said in cases:
        path = tmp_path / "named.jsonl"
        path.write_text(line + "\n")
        source = Files(path, event_time="at", type=Named, time_unit="us")
        with pytest.raises(BadInput) as error:
            sifted_or_raised(source)
        assert said in error.value.what


def sifted_or_raised(source: Files) -> None:
    offer = source.offer(source.start(), Limit(10, 1 << 20))
    assert offer is not None
    for split in source.splits(source.start(), offer.end):
        source.read(split)


def test_a_pipeline_with_letters_can_be_driven_by_hand() -> None:
    collected = Collected()
    source = Iterable([], Row, event_time="at")
    with drive(pipeline(source, "dead_letter", collected)) as t:
        t.push("rows", Row(5, 1))
        assert t.run() == 1
        assert [out.value.n for out in t.outputs("out")] == [1] and t.outputs("dead") == []
