"""What a file of SQL declares: tables, views, and where their rows go."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from headrace.errors import PipelineError
from headrace.sql.views import MOST_LETTERS
from headrace.sqlfile.options import Options, Text
from headrace.sqlfile.providers import options_of
from headrace.sqlfile.tokens import NAME, NUMBER, TEXT, Script, Word

_NAMES = re.compile(rf"[A-Za-z][A-Za-z0-9_]{{0,{MOST_LETTERS - 1}}}")
_UNITS = {
    "MILLISECOND": 1_000,
    "SECOND": 1_000_000,
    "MINUTE": 60_000_000,
    "HOUR": 3_600_000_000,
    "DAY": 86_400_000_000,
}
_TYPES: dict[str, pa.DataType] = {
    "BOOLEAN": pa.bool_(),
    "TINYINT": pa.int8(),
    "BYTE": pa.int8(),
    "SMALLINT": pa.int16(),
    "SHORT": pa.int16(),
    "INT": pa.int32(),
    "INTEGER": pa.int32(),
    "BIGINT": pa.int64(),
    "LONG": pa.int64(),
    "FLOAT": pa.float32(),
    "REAL": pa.float32(),
    "DOUBLE": pa.float64(),
    "STRING": pa.string(),
    "VARCHAR": pa.string(),
    "BINARY": pa.binary(),
    "BYTES": pa.binary(),
    "DATE": pa.date32(),
    "TIMESTAMP": pa.timestamp("us", "UTC"),
    "TIMESTAMP_LTZ": pa.timestamp("us", "UTC"),
    "TIMESTAMP_NTZ": pa.timestamp("us"),
}
_STATEMENTS = (
    "SET, CREATE TABLE, CREATE VIEW, CREATE MATERIALIZED VIEW, CREATE SINK, INSERT INTO and EXPLAIN"
)


#: What stands behind a query whose rows wait until they are final.
_FINAL = ("EMIT", "ON", "WINDOW", "CLOSE")


@dataclass(frozen=True)
class Watermark:
    """Which column is the event time, and how late records may come, in microseconds."""

    column: str
    delay_us: int
    at: int


@dataclass(frozen=True)
class Table:
    """CREATE TABLE: rows from outside, or rows that go there."""

    name: str
    at: int
    columns: pa.Schema
    key: tuple[str, ...]
    options: Options
    watermark: Watermark | None


@dataclass(frozen=True)
class View:
    """CREATE VIEW: a query with a name. A materialized one keeps its rows."""

    name: str
    at: int
    query: Text
    materialized: bool = False
    key: tuple[str, ...] = ()


@dataclass(frozen=True)
class Insert:
    """INSERT INTO: the rows of a query go to a table outside."""

    target: str
    at: int
    query: Text


@dataclass(frozen=True)
class SinkOfView:
    """CREATE SINK: the rows of a view or of a query go outside, with its columns."""

    name: str
    at: int
    query: Text
    key: tuple[str, ...]
    options: Options


@dataclass(frozen=True)
class Explain:
    """EXPLAIN: say how a view or a query is maintained."""

    what: Text
    is_query: bool


@dataclass
class Declared:
    """All that a file declares, in its order."""

    settings: dict[str, Text] = field(default_factory=dict)
    tables: dict[str, Table] = field(default_factory=dict)
    views: list[View] = field(default_factory=list)
    inserts: list[Insert] = field(default_factory=list)
    sinks: list[SinkOfView] = field(default_factory=list)
    explained: list[Explain] = field(default_factory=list)


def declared(script: Script) -> Declared:
    """Return what a file declares.

    Raises:
        PipelineError: for anything that is none of its statements, with the place and the remedy.
    """
    found = Declared()
    for words in script.statements():
        _Reader(script, words).statement(found)
    return found


class _Reader:
    """Reads the words of one statement, from left to right."""

    def __init__(self, script: Script, words: Sequence[Word]) -> None:
        self._script, self._words, self._next = script, words, 0

    # -- statements ---------------------------------------------------------------------------

    def statement(self, found: Declared) -> None:
        first = self._words[0]
        if self._take("SET"):
            name = self._text("the name of a setting")
            self._want("=")
            found.settings[name.text] = self._text("its value")
            self._end()
        elif self._take("CREATE"):
            self._create(found, first)
        elif self._take("INSERT"):
            self._want("INTO")
            target = self._name("a table")
            if self._is("("):
                raise self._wrong("a list of columns", "give all columns in the table's order")
            found.inserts.append(Insert(target.text, target.start, self._query()))
        elif self._take("EXPLAIN"):
            self._explain(found)
        else:
            raise self._script.error(
                f"{first.text!r} begins no statement of a pipeline",
                first.start,
                f"there are {_STATEMENTS}; a query belongs behind CREATE VIEW … AS or INSERT INTO …",
            )

    def _create(self, found: Declared, first: Word) -> None:
        if self._take("OR"):
            raise self._script.error(
                "OR REPLACE: nothing is there that could be replaced", first.start, "leave it out"
            )
        self._take("TEMPORARY", "TEMP")
        if self._take("MATERIALIZED"):
            self._want("VIEW")
            self._view(found, materialized=True)
        elif self._take("VIEW"):
            self._view(found)
        elif self._take("TABLE"):
            self._table(found)
        elif self._take("SINK"):
            self._sink(found)
        else:
            raise self._wrong("TABLE, VIEW, MATERIALIZED VIEW or SINK", f"there are {_STATEMENTS}")

    def _view(self, found: Declared, *, materialized: bool = False) -> None:
        name = self._new_name(found)
        key: tuple[str, ...] = ()
        if self._is("(") and not materialized:
            raise self._wrong("AS", "name the columns in the query: SELECT x AS name")
        if self._take("("):
            key = self._primary_key()
            self._want(")")
        self._want("AS")
        found.views.append(View(name.text, name.start, self._query(), materialized, key))

    def _sink(self, found: Declared) -> None:
        name = self._new_name(found)
        key: tuple[str, ...] = ()
        if self._take("("):
            key = self._primary_key()
            self._want(")")
        if self._take("FROM"):
            view = self._name("a view or table")
            query = Text(f"SELECT * FROM `{view.text.replace('`', '``')}`", view.start)
        else:
            self._want("AS")
            query = self._query(until=self._last_with())
        options = self._options()
        found.sinks.append(SinkOfView(name.text, name.start, query, key, options))
        self._end()

    def _table(self, found: Declared) -> None:
        name = self._new_name(found)
        self._want("(")
        fields: dict[str, pa.Field] = {}
        key: tuple[str, ...] = ()
        watermark: Watermark | None = None
        while True:
            at = self._at
            if self._is("PRIMARY"):
                key = self._primary_key()
            elif self._take("WATERMARK"):
                watermark = self._watermark()
            else:
                column, is_key = self._column()
                if column.name in fields:
                    raise self._script.error(
                        f"column {column.name!r} is named twice", at, "name each column once"
                    )
                fields[column.name] = column
                key = (column.name,) if is_key else key
            if not self._take(","):
                break
        self._want(")")
        options = self._provider() if self._is("USING") else self._options()
        self._end()
        for one in (*key, *([watermark.column] if watermark else [])):
            if one not in fields:
                raise self._script.error(
                    f"table {name.text!r} has no column {one!r}",
                    name.start,
                    f"it has {', '.join(fields)}",
                )
        columns = [f.with_nullable(f.nullable and f.name not in key) for f in fields.values()]
        found.tables[name.text] = Table(
            name.text, name.start, pa.schema(columns), key, options, watermark
        )

    def _explain(self, found: Declared) -> None:
        if self._take("PLAN"):
            self._want("FOR")
        if self._is("SELECT", "WITH", "(", "VALUES"):
            found.explained.append(Explain(self._query(), True))
            return
        name = self._name("a view or a query")
        self._end()
        found.explained.append(Explain(Text(name.text, name.start), False))

    # -- parts of statements ------------------------------------------------------------------

    def _column(self) -> tuple[pa.Field, bool]:
        name = self._name("a column")
        kind = self._type()
        nullable, is_key = True, False
        while not self._is(",", ")"):
            if self._take("NOT"):
                self._want("NULL")
                nullable = False
            elif self._take("PRIMARY"):
                self._want("KEY")
                self._not_enforced()
                is_key = True
            elif self._take("COMMENT"):
                self._text("the comment")
            elif not self._take("NULL"):
                raise self._wrong(
                    "NOT NULL, PRIMARY KEY, a comma or a parenthesis",
                    "computed columns, defaults and checks belong into a view over the table",
                )
        return pa.field(name.text, kind, nullable=nullable), is_key

    def _type(self) -> pa.DataType:
        at = self._at
        word = self._name("a type")
        text = word.text.upper()
        if text in ("DECIMAL", "NUMERIC", "DEC"):
            digits = self._numbers() or [10, 0]
            precision, scale = digits[0], digits[1] if len(digits) > 1 else 0
            if not (1 <= precision <= 38 and 0 <= scale <= precision):
                raise self._script.error(
                    f"there is no DECIMAL({precision}, {scale})", at, "it has at most 38 digits"
                )
            return pa.decimal128(precision, scale)
        if text == "ARRAY":
            self._want("<")
            element = self._type()
            self._want(">")
            return pa.list_(element)
        kind = _TYPES.get(text)
        if kind is None:
            raise self._script.error(
                f"there is no type {word.text} for a column of a table",
                at,
                f"use {', '.join(sorted({*_TYPES, 'DECIMAL(p, s)'}))}, ARRAY<type>",
            )
        if self._is("(") and text != "TIMESTAMP":
            raise self._script.error(
                f"{word.text} has a length here, which nobody would check", at, "use STRING"
            )
        if text == "TIMESTAMP":
            if self._numbers() not in ([], [3], [6]):
                raise self._script.error(
                    "times have microseconds", at, "use TIMESTAMP, or TIMESTAMP(6)"
                )
            if self._is("WITH", "WITHOUT"):
                raise self._script.error(
                    "TIMESTAMP WITH and WITHOUT TIME ZONE are of another dialect",
                    at,
                    "use TIMESTAMP for points in time, and TIMESTAMP_NTZ for times without a zone",
                )
        return kind

    def _numbers(self) -> list[int]:
        found: list[int] = []
        if self._take("("):
            while True:
                word = self._word(NUMBER, "a number")
                found.append(int(word.text) if word.text.isdecimal() else -1)
                if not self._take(","):
                    break
            self._want(")")
        return found

    def _primary_key(self) -> tuple[str, ...]:
        self._want("PRIMARY")
        self._want("KEY")
        self._want("(")
        names = [self._name("a column").text]
        while self._take(","):
            names.append(self._name("a column").text)
        self._want(")")
        self._not_enforced()
        return tuple(names)

    def _not_enforced(self) -> None:
        if self._is("NOT") and self._is("ENFORCED", ahead=1):
            self._next += 2

    def _watermark(self) -> Watermark:
        """Read ``WATERMARK FOR at AS at - INTERVAL '5' SECOND``, as Flink writes it."""
        at = self._at
        self._want("FOR")
        column = self._name("the column of the event time")
        self._want("AS")
        again = self._name(f"{column.text} again")
        if again.text != column.text:
            raise self._script.error(
                f"the watermark of {column.text} is made of {again.text}",
                again.start,
                f"write {column.text}, perhaps less an interval: - INTERVAL '5' SECOND",
            )
        delay = 0
        if self._take("-"):
            self._want("INTERVAL")
            number = self._text("a number in quotes, such as '5'")
            unit = self._name("a unit")
            factor = _UNITS.get(unit.text.upper().removesuffix("S"))
            if factor is None or not number.text.isdecimal():
                raise self._script.error(
                    f"there is no INTERVAL '{number.text}' {unit.text} here",
                    number.at,
                    f"use a whole number of {', '.join(_UNITS)}",
                )
            delay = int(number.text) * factor
        return Watermark(column.text, delay, at)

    def _provider(self) -> Options:
        """Read ``USING json OPTIONS (…) LOCATION '…'``, as Spark writes it."""
        self._want("USING")
        word = self._name("a provider, such as json")
        provider = Text(word.text, word.start)
        location: Text | None = None
        given: dict[str, Text] = {}
        while True:
            if self._take("OPTIONS"):
                given |= self._values(of_spark=True)
            elif self._take("LOCATION"):
                location = self._text("a place, in quotes")
            elif self._take("COMMENT"):
                self._text("the comment")
            elif self._is("PARTITIONED", "CLUSTERED", "TBLPROPERTIES"):
                raise self._wrong(
                    "the end of the statement", "leave it out; it says how rows are stored"
                )
            else:
                return options_of(self._script, provider, location, given)

    def _options(self) -> Options:
        at = self._at
        if not self._take("WITH"):
            raise self._wrong(
                "WITH (…) or USING",
                "say where the rows are: WITH ('connector' = 'filesystem', …), or USING json LOCATION '…'",
            )
        return Options(self._values(), at)

    def _values(self, *, of_spark: bool = False) -> dict[str, Text]:
        """Read names and values in parentheses. Spark needs no sign between them."""
        self._want("(")
        values: dict[str, Text] = {}
        while True:
            start = self._at
            name = self._option_name()
            if not (of_spark and not self._is("=")):
                self._want("=")
            if name in values:
                raise self._script.error(f"option {name!r} is given twice", start, "give it once")
            values[name] = self._text("the value of an option, in quotes")
            if not self._take(","):
                break
        self._want(")")
        return values

    def _option_name(self) -> str:
        """Return the name of an option: a text, or words with points and hyphens between them."""
        if self._next < len(self._words) and self._words[self._next].kind == TEXT:
            return self._text("").text
        parts = [self._name("the name of an option").text]
        while self._is(".", "-"):
            parts.append(self._words[self._next].text)
            self._next += 1
            parts.append(self._name("the name of an option").text)
        return "".join(parts)

    def _last_with(self) -> int | None:
        """Return where the last WITH of the statement is that is followed by options."""
        for at in range(len(self._words) - 2, self._next, -1):
            if self._words[at].is_("WITH") and self._words[at + 1].is_("("):
                return at
        return None

    def _query(self, until: int | None = None) -> Text:
        """Return the rest of the statement, or its words up to one of them, as it is written."""
        words = self._words[self._next : until]
        if not words:
            raise self._wrong("a query", "write SELECT …")
        self._next += len(words)
        final = len(words) > len(_FINAL) and all(
            word.is_(keyword) for word, keyword in zip(words[-len(_FINAL) :], _FINAL, strict=True)
        )
        last = words[-len(_FINAL) - 1] if final else words[-1]
        return Text(self._script.text[words[0].start : last.end + 1], words[0].start, final)

    # -- words --------------------------------------------------------------------------------

    @property
    def _at(self) -> int:
        if self._next < len(self._words):
            return self._words[self._next].start
        return self._words[-1].end

    def _is(self, *keywords: str, ahead: int = 0) -> bool:
        at = self._next + ahead
        return at < len(self._words) and self._words[at].is_(*keywords)

    def _take(self, *keywords: str) -> bool:
        taken = self._is(*keywords)
        self._next += taken
        return taken

    def _want(self, keyword: str) -> None:
        if not self._take(keyword):
            raise self._wrong(keyword, f"write {keyword} there")

    def _word(self, kind: str, what: str) -> Word:
        if self._next >= len(self._words) or self._words[self._next].kind != kind:
            raise self._wrong(what, f"write {what} there")
        self._next += 1
        return self._words[self._next - 1]

    def _name(self, what: str) -> Word:
        return self._word(NAME, what)

    def _new_name(self, found: Declared) -> Word:
        if self._is("IF"):
            raise self._wrong("a name", "leave IF NOT EXISTS out: a file declares each name once")
        name = self._name("a name")
        if self._is("."):
            raise self._wrong("a name without a point", "leave catalog and database out")
        taken = {*found.tables, *(v.name for v in found.views), *(s.name for s in found.sinks)}
        if name.text.lower() in {one.lower() for one in taken}:
            raise self._script.error(
                f"{name.text!r} is declared already", name.start, "give it another name"
            )
        if not _NAMES.fullmatch(name.text):
            raise self._script.error(
                f"{name.text!r} cannot be the name of a table or view",
                name.start,
                f"use a letter, then letters (a to z), digits and underscores, at most {MOST_LETTERS} "
                "in all: it also names state and metrics",
            )
        return name

    def _text(self, what: str) -> Text:
        word = self._word(TEXT, what)
        return Text(word.text, word.start)

    def _end(self) -> None:
        if self._next < len(self._words):
            raise self._wrong("the end of the statement", "end it with a semicolon")

    def _wrong(self, wanted: str, remedy: str) -> PipelineError:
        at = self._next
        found = f"{self._words[at].text!r}" if at < len(self._words) else "the end of the statement"
        return self._script.error(f"{found} is there, and not {wanted}", self._at, remedy)


__all__ = [
    "Declared",
    "Explain",
    "Insert",
    "Options",
    "SinkOfView",
    "Table",
    "Text",
    "View",
    "Watermark",
    "declared",
]
