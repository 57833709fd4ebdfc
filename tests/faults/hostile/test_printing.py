"""What is printed is escaped, bounded, without passwords, and hidden on request."""

from __future__ import annotations

import ast
import csv
import io
import json
import logging
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import headrace as hr
from headrace import cli, errors
from headrace.cli import main
from headrace.cli.tables import aligned
from headrace.errors import BadInput, StorageError, UserCodeError
from headrace.errors.printable import (
    HIDE,
    csv_cell,
    json_printable,
    message,
    one_line,
    printable,
    without_secrets,
)
from headrace.storage import MemoryStore
from headrace.testing import drive

ESCAPES = "\x1b[31mred\x1b[0m\x9b2J\u202egnp.exe\x07\r\n"
SECOND = 1_000_000


class Item(msgspec.Struct):
    key: str
    text: str
    n: int
    at: int


class Keep(hr.Computation):
    text = hr.ValueState(str)
    n = hr.ValueState(int)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        self.text.value, self.n.value = record.value.text, record.value.n
        if record.value.n == 13:
            raise ValueError(f"no luck with {record.value.text}")


def draw() -> hr.Pipeline:
    pipeline = hr.Pipeline("keeps")
    source = hr.sources.Iterable([], Item, event_time="at")
    items = pipeline.inject("items", source, watermark=hr.bounded_delay("0s"))
    pipeline.compute("keep", Keep(), keys={items: "key"})
    return pipeline


def stored(*values: Item) -> MemoryStore:
    store = MemoryStore()
    with drive(draw(), storage=store) as t:
        t.push_many("items", values)
        t.step()
    return store


def said(store: MemoryStore, *command: str) -> str:
    result = CliRunner().invoke(main, [*command, "--storage", store.location])
    assert result.exit_code == 0, result.output
    return result.output


@given(st.text(st.characters(), max_size=200))
def test_nothing_that_a_terminal_obeys_is_left_and_what_is_printable_stays(text: str) -> None:
    shown = printable(text)
    assert all(
        char.isprintable() or char in "\n\t\u200c\u200d" or _is_other(char) for char in shown
    )
    if text.isprintable():
        assert shown == text
    assert "\n" not in one_line(text) and "\t" not in one_line(text)


def _is_other(char: str) -> bool:
    """Say whether it is a character that Python does not print, and a terminal does not obey."""
    import unicodedata

    return unicodedata.category(char) in ("Zs", "Cn", "Co", "Cf")


@given(st.text(st.characters(), max_size=200).filter(lambda text: text.isascii() or text.encode))
def test_json_means_the_same(text: str) -> None:
    encoded = json.dumps([text], ensure_ascii=False)
    shown = json_printable(encoded)
    assert json.loads(shown) == [text]
    assert not any(char in shown for char in "\x1b\x9b\u202e\x07\x7f")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("s3://ann:pass@host/x", "s3://***@host/x"),
        ("https://h/x?token=abc&y=1", "https://h/x?token=***&y=1"),
        ('{"password": "p4ss"}', '{"password": "***"}'),
        ("AWS_SECRET_ACCESS_KEY=abc def", "AWS_SECRET_ACCESS_KEY=*** def"),
        ("webhdfs://host:9870/a@b/c", "webhdfs://host:9870/a@b/c"),
        ("the token of a process", "the token of a process"),
    ],
)
def test_passwords_in_addresses_and_settings_are_not_shown(text: str, shown: str) -> None:
    assert without_secrets(text) == shown


def test_errors_are_escaped_bounded_and_without_passwords() -> None:
    error = StorageError(
        f"cannot read {ESCAPES}{'x' * 5_000_000}", place="s3://ann:pass@host/x", remedy=ESCAPES
    )
    assert len(str(error)) < 20_000
    assert "(5,000,0" in str(error) and "pass" not in str(error)
    assert not any(char in str(error) for char in "\x1b\x9b\u202e\x07\r")
    user = UserCodeError("ValueError: " + ESCAPES, traceback_text=ESCAPES + "y" * 5_000_000)
    assert len(str(user)) < 60_000 and "\x1b" not in str(user)


def test_every_error_goes_through_it() -> None:
    for kind in vars(errors).values():
        if isinstance(kind, type) and issubclass(kind, errors.HeadraceError):
            assert "\x1b" not in str(kind(ESCAPES, place=ESCAPES, remedy=ESCAPES)), kind


def test_a_value_with_escapes_is_shown_as_text_and_given_whole_as_json() -> None:
    store = stored(Item("a", ESCAPES, 1, SECOND), Item("b\x1b]0;title\x07", "x", 2, SECOND))
    text = said(store, "state", "scan", "keep")
    assert not any(char in text for char in "\x1b\x9b\u202e\x07\r")
    rows = [
        json.loads(line)
        for line in said(store, "state", "scan", "keep", "--output", "json").splitlines()
    ]
    assert {row["key"] for row in rows} == {"a", "b\x1b]0;title\x07"}
    assert any(ESCAPES in map(str, _texts(row)) for row in rows)


def _texts(row: dict[str, object]) -> list[object]:
    """Return the cells of a row; values of state are JSON."""
    cells = list(row.values())
    return [json.loads(cell) if str(cell).startswith('"') else cell for cell in cells if cell]  # type: ignore[arg-type]


def test_a_record_of_five_megabytes_does_not_fill_the_screen() -> None:
    store = stored(Item("a", "x" * 5_000_000, 1, SECOND))
    assert len(said(store, "state", "get", "keep", "a")) < 10_000
    whole = said(store, "state", "get", "keep", "a", "--output", "json")
    assert len(whole) > 5_000_000


def test_formulas_are_texts_in_csv_and_numbers_stay() -> None:
    table = pa.table(
        {"=name": ["=1+1", "+1", "-1", "@x", "\tx", "\rx", "x"], "n": [-1, 2, 3, 4, 5, 6, 7]}
    )
    from headrace.cli.tables import emit_rows

    out = io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdout", out)
        emit_rows(table, "csv")
    rows = list(csv.reader(io.StringIO(out.getvalue(), newline="")))
    assert rows[0] == ["'=name", "n"]
    assert [row[0] for row in rows[1:]] == ["'=1+1", "'+1", "'-1", "'@x", "'\tx", "\\rx", "x"]
    assert [row[1] for row in rows[1:]] == ["-1", "2", "3", "4", "5", "6", "7"]
    assert csv_cell("a=b") == "a=b"


@pytest.mark.parametrize("output", ["text", "json", "csv"])
def test_values_are_hidden_on_request(output: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(HIDE, raising=False)
    monkeypatch.setenv(HIDE, "0")
    store = stored(Item("secret key", "secret text", 4711, SECOND))
    assert "secret" in said(store, "state", "scan", "keep", "--output", output)
    hidden = said(store, "state", "scan", "keep", "--output", output, "--hide-values")
    assert "secret" not in hidden and "4711" not in hidden and "(hidden)" in hidden


def test_errors_hide_values_where_the_environment_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def failed() -> UserCodeError:
        with drive(draw()) as t, pytest.raises(UserCodeError) as error:
            t.push("items", Item("secret key", "secret text", 13, SECOND))
            t.step()
        return error.value

    monkeypatch.setenv(HIDE, "0")
    assert "secret key" in str(failed()) and "secret text" in str(failed())
    monkeypatch.setenv(HIDE, "1")
    error = failed()
    assert "secret" not in str(error) and "secret" not in error.traceback_text
    assert "ValueError" in str(error) and "process_record" in str(error)
    bad = BadInput("'secret text' is not a time", place="file.csv, row 7")
    assert "secret" not in str(bad) and "file.csv, row 7" in str(bad)


def test_what_is_logged_is_fit_for_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    formatter = cli._Printable("%(name)s: %(message)s")
    record = logging.LogRecord("x", logging.WARNING, "", 0, "bad %s", (ESCAPES,), None)
    assert not any(char in formatter.format(record) for char in "\x1b\x9b\u202e\x07\r")


def test_cells_of_a_table_are_one_line_each() -> None:
    lines = aligned(pa.table({"a\nb": ["x\ny", "z\tz"]}))
    assert len(lines) == 3 and not any("\n" in line or "\t" in line for line in lines)


def test_nothing_is_printed_past_it() -> None:
    """(One function prints for people, one for programs; rich gets what went through it.)"""
    for path in Path(cli.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                name = ast.unparse(node.func)
                printing = name in ("click.echo", "print", "click.secho", "sys.stdout.write")
                assert not printing or path.name == "common.py", f"{path.name}:{node.lineno}"


def test_a_message_is_bounded_from_both_ends() -> None:
    text = message("begin" + "x" * 100_000 + "end")
    assert text.startswith("begin") and text.endswith("end") and "(100,008 characters)" in text


RAISES = """
import headrace as hr, msgspec, os

class Item(msgspec.Struct, frozen=True):
    key: str
    at: int

class Unsayable(Exception):
    def __str__(self):
        raise ValueError(self.args[0])

def fails(value):
    match {how!r}:
        case "text": raise ValueError(f"bad\\n  {{value}}")
        case "unsayable": raise Unsayable(value)
        case "exit": raise SystemExit(value)
        case "exits well": raise SystemExit(0)
        case "kind": raise type(value[:6], (LookupError,), {{}})(value)
        case "note":
            error = ValueError("x")
            error.add_note("  " + value)
            raise error
        case "group": raise BaseExceptionGroup(value, [SystemExit(value)])
        case "cause":
            try: raise ValueError(value)
            except ValueError as error: raise KeyError(value) from error

class Echo(hr.Computation):
    out = hr.Output(str)
    def process_record(self, ctx, record):
        if {at!r} == "handler": fails(record.value.key)
        ctx.produce("out", record.value.key)

def items():
    yield Item(os.environ["WORDS"], 1)
    if {at!r} == "source": fails(os.environ["WORDS"])

def take(step, rows):
    if {at!r} == "sink": fails(rows.to_pylist()[0]["value"])

def pipeline():
    pipeline = hr.Pipeline("raises")
    source = hr.sources.Iterable(items, Item, event_time="at")
    node = pipeline.compute("it", Echo(), keys={{pipeline.inject("in", source): "key"}})
    pipeline.sink("out", node["out"], hr.sinks.Calls(take))
    if {at!r} == "file": fails(os.environ["WORDS"])
    return pipeline
"""
SECRET = f"Secret words {ESCAPES}"
HOWS = ["text", "unsayable", "exit", "exits well", "kind", "note", "group", "cause"]


@pytest.mark.parametrize("at", ["handler", "source", "sink", "file"])
@pytest.mark.parametrize("how", HOWS)
def test_what_the_users_code_raises_is_told_in_a_sentence_and_hidden_on_request(
    at: str, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(HIDE, "0")
    monkeypatch.setenv("WORDS", SECRET)
    file = tmp_path / "drawn.py"
    file.write_text(RAISES.format(at=at, how=how))
    for hides in ((), ("--hide-values",)):
        arguments = ["run", str(file), "--storage", str(tmp_path / "st"), "--runner", "inline"]
        found = CliRunner().invoke(main, [*arguments, *hides])
        assert found.exit_code == 4, found.output
        assert not any(char in found.output for char in "\x1b\x9b\u202e\x07\r")
        assert "[HR10" in found.output
        if hides:
            assert "Secret" not in found.output
        elif how in ("text", "exit", "cause"):
            assert "Secret" in found.output
