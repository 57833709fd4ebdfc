"""Files of sqllogictest: statements, and queries with their answers.

The corpus is SQLite's, as the jar of net.hydromatic:sql-logic-test has it. Each query is drawn as a
view before the file's statements run. These run in DuckDB; what they change in its tables is a step
of the pipeline. Where a query stands in the file, the view must be its answer.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import duckdb
import pyarrow as pa

import headrace as hr
from headrace.errors import HeadraceError, PipelineError
from headrace.sql.catalyst import Catalyst
from headrace.sql.ir.relations import Query
from headrace.sql.ir.types import of_arrow
from tests.support.jars import Jar
from tests.support.sql.interpreter import rows_of, sorted_rows
from tests.support.sql.live import Row, pipeline_of, produced, push

CORPUS = Jar(
    "net.hydromatic",
    "sql-logic-test",
    "0.3",
    "801efc1904e802795a20ce30559025c0b5a7a21840114722717c0466089c13f0",
)


@dataclass(frozen=True)
class Record:
    """A statement, or a query with its answer.

    Attributes:
        kind: ``statement`` or ``query``.
        sql: its text.
        fails: whether a statement is to fail.
        types: for a query, a letter for each column: ``I``, ``R`` or ``T``.
        sort: ``nosort``, ``rowsort`` or ``valuesort``.
        answer: the values, or one line with their number and their hash.
    """

    kind: str
    sql: str
    fails: bool = False
    types: str = ""
    sort: str = "nosort"
    answer: tuple[str, ...] = ()


def records(text: str) -> Iterator[Record]:
    """Iterate over the records of a file that are not for other engines only."""
    for block in re.split(r"\n[ \t]*\n", text.replace("\r", "")):
        lines = [line for line in block.split("\n") if not line.startswith("#")]
        if any(line.startswith("onlyif") for line in lines):
            continue
        lines = [
            line for line in lines if line and not line.startswith(("skipif", "hash-threshold"))
        ]
        if not lines:
            continue
        head, *rest = lines
        words = head.split()
        if words[0] == "statement":
            yield Record("statement", "\n".join(rest), fails=words[1] == "error")
        if words[0] == "query":
            end = rest.index("----") if "----" in rest else len(rest)
            sort = words[2] if len(words) > 2 else "nosort"
            yield Record(
                "query", "\n".join(rest[:end]), False, words[1], sort, tuple(rest[end + 1 :])
            )


def files(part: str) -> list[str]:
    """Return the names of the files in a part of the corpus that have an odd number."""
    with zipfile.ZipFile(CORPUS.fetch()) as jar:
        found = [
            name for name in jar.namelist() if name.startswith(part) and name.endswith(".test")
        ]
    return sorted(name for name in found if int(re.findall(r"\d+", name)[-1]) % 2 == 1)


def text_of(name: str) -> str:
    """Return a file."""
    with zipfile.ZipFile(CORPUS.fetch()) as jar:
        return jar.read(name).decode()


def shown(value: Any, kind: str) -> str:
    """Return a value as the corpus writes it."""
    if value is None:
        return "NULL"
    if kind in {"I", "R"} and isinstance(value, str):  # SQLite reads the number it starts with
        value = (re.match(r"\s*[+-]?\d+(\.\d*)?", value) or ["0"])[0]
        value = float(value) if kind == "R" else int(value.partition(".")[0])
    if kind == "I":
        return str(int(value))
    if kind == "R":
        return f"{float(value):.3f}"
    return str(value) or "(empty)"


def matches(record: Record, table: pa.Table) -> bool:
    """Return whether an answer is that of a record."""
    if table.num_columns != len(record.types):
        return False
    columns = [column.to_pylist() for column in table.columns]
    pairs = zip(columns, record.types, strict=True)
    rows = list(zip(*([shown(one, kind) for one in column] for column, kind in pairs), strict=True))
    if record.sort != "nosort":
        rows.sort()
    values = [one for row in rows for one in row]
    if record.sort == "valuesort":
        values.sort()
    if hashed := re.fullmatch(r"(\d+) values hashing to ([0-9a-f]+)", "".join(record.answer)):
        digest = hashlib.md5("".join(f"{one}\n" for one in values).encode()).hexdigest()
        return (str(len(values)), digest) == hashed.groups()
    return values == list(record.answer)


@dataclass
class Trial:
    """What came of some queries that were drawn as views before anything was in their tables.

    Attributes:
        outcomes: how many were ``right``, ``wrong``, or refused, by reason.
        wrong: those that were wrong.
    """

    outcomes: Counter[str] = field(default_factory=Counter)
    wrong: list[tuple[str, str]] = field(default_factory=list)

    def run_file(self, session: Any, name: str, limit: int, at_once: int = 40) -> None:
        """Try the first queries of a file: some of them in one pipeline, then further ones.

        Each pipeline starts with empty tables, and sees the file's statements as its steps.
        """
        steps = list(records(text_of(name)))
        chosen = [at for at, one in enumerate(steps) if one.kind == "query"][:limit]
        tables = _tables(steps)
        for first in range(0, len(chosen), at_once):
            self._run_some(session, name, steps, chosen[first : first + at_once], tables)

    def _run_some(
        self,
        session: Any,
        name: str,
        steps: list[Record],
        chosen: list[int],
        tables: dict[str, pa.Schema],
    ) -> None:
        catalyst = Catalyst(session)
        pipeline, views = pipeline_of(catalyst, tables, {})
        drawn: dict[int, Query] = {}
        for at in chosen:
            try:
                views.view(f"v{at}", spark_sql(steps[at])).compute(f"out{at}")
            except PipelineError as error:
                self.outcomes[f"refused: {reason(error)}"] += 1
                continue
            drawn[at] = views.queries[f"v{at}"]
        try:
            outcomes = _followed(pipeline, steps, drawn, tables)
        except HeadraceError as error:
            if len(chosen) == 1:
                self.outcomes[f"fails as in ANSI mode: {failure(error)}"] += 1
                return
            for at in drawn:  # one of them fails, and with it the step: each alone
                self._run_some(session, name, steps, [at], tables)
            return
        for at, is_right in outcomes.items():
            self.outcomes["right" if is_right else "wrong"] += 1
            if not is_right:
                self.wrong.append((name, steps[at].sql))


def _tables(steps: list[Record]) -> dict[str, pa.Schema]:
    """Return the columns of the tables that a file makes."""
    found = {}
    with duckdb.connect() as database:
        for one in steps:
            made = re.match(r"\s*CREATE TABLE (\w+)", one.sql, re.IGNORECASE)
            if one.kind == "statement" and made and made[1].lower() not in found:
                with contextlib.suppress(duckdb.Error):
                    database.execute(one.sql)
                    schema = database.sql(f"SELECT * FROM {made[1]}").to_arrow_table().schema
                    kinds = [(f.name, of_arrow(f.type).arrow) for f in schema]
                    found[made[1].lower()] = pa.schema(kinds)
    return found


def _followed(
    pipeline: Any, steps: list[Record], drawn: Mapping[int, Query], tables: dict[str, pa.Schema]
) -> dict[int, bool]:
    """Run a file's statements, a step before each query that was drawn, and compare its view."""
    outcomes: dict[int, bool] = {}
    if not drawn:
        return outcomes
    held: dict[int, Counter[Row]] = {at: Counter() for at in drawn}
    there: dict[str, Counter[Row]] = {name: Counter() for name in tables}
    is_changed, number = True, 0
    with hr.testing.drive(pipeline, workers=2, bins=4) as t, duckdb.connect() as database:
        for at, one in enumerate(steps[: max(drawn) + 1]):
            if one.kind == "statement":
                with contextlib.suppress(duckdb.Error):
                    database.execute(one.sql)
                is_changed = True
                continue
            if at not in drawn:
                continue
            if is_changed:
                changes = _changes(database, there, tables)
                push(t, tables, changes, number)
                t.run()
                number += 1
                for view, rows in held.items():
                    rows.update(produced(t, f"out{view}"))
                is_changed = False
            outcomes[at] = _is_right(one, drawn[at], held[at])
    return outcomes


def _changes(
    database: Any, there: dict[str, Counter[Row]], tables: Mapping[str, pa.Schema]
) -> dict[str, tuple[list[Row], list[Row]]]:
    """Return which rows have come to each table and gone from it."""
    found = {}
    for name, schema in tables.items():
        now: Counter[Row] = Counter()
        with contextlib.suppress(duckdb.Error):
            table = database.sql(f"SELECT * FROM {name}").to_arrow_table().cast(schema)
            now = Counter(zip(*(column.to_pylist() for column in table.columns), strict=True))
        found[name] = (
            list((now - there[name]).elements()),
            list((there[name] - now).elements()),
        )
        there[name] = now
    return found


def _is_right(record: Record, query: Query, held: Mapping[Row, int]) -> bool:
    if min(held.values(), default=0) < 0:
        return False
    rows = [row for row, times in held.items() for _ in range(times)]
    columns = query.relation.columns
    arrays = [pa.array([row[at] for row in rows], one.type.arrow) for at, one in enumerate(columns)]
    table = pa.Table.from_arrays(arrays, names=[str(at) for at in range(len(columns))])
    if query.order and record.sort == "nosort":  # a view is a bag, and a reader sorts it
        of = rows_of(table, columns)
        table = table.take(pa.array(sorted_rows(of, query.order, range(of.length)), pa.int64()))
    return matches(record, table) or _as_bag(record, table)


def spark_sql(record: Record) -> str:
    """Return a query in Spark's words: the corpus divides integers as SQLite does."""
    if "R" in record.types:
        return record.sql
    return re.sub(r"(?<![/*])/(?![/*])", " DIV ", record.sql)


def _as_bag(record: Record, table: pa.Table) -> bool:
    """Return whether rows are the right ones, whatever the order in which the file has them."""
    if any("hashing" in one for one in record.answer) or record.sort == "valuesort":
        return False
    width = max(len(record.types), 1)
    given = list(record.answer)
    rows = sorted(tuple(given[at : at + width]) for at in range(0, len(given), width))
    answer = tuple(one for row in rows for one in row)
    return matches(Record("query", "", False, record.types, "rowsort", answer), table)


def reason(error: PipelineError) -> str:
    """Return a refusal without the texts that differ from query to query."""
    if found := re.search(r"\[([A-Z_.]+)\]", error.what):
        return found[1]
    return re.sub(r" 'v\d+'|:.*", "", error.what)[:60]


def failure(error: HeadraceError) -> str:
    """Return why a step failed, in a word."""
    if found := re.search(r"\b([A-Z]+(?:_[A-Z]+)+)\b", str(error)):
        return found[1]
    return str(getattr(error, "condition", "") or error.code)
