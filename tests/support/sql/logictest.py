"""Files of sqllogictest: statements, and queries with their answers.

The corpus is SQLite's, as the jar of net.hydromatic:sql-logic-test has it. Statements run in DuckDB,
which has the tables; each query is planned and interpreted over what they hold then.
"""

from __future__ import annotations

import hashlib
import re
import zipfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import duckdb
import pyarrow as pa

from headrace.errors import HeadraceError, PipelineError
from headrace.sql.catalyst import Catalyst
from headrace.sql.ir.relations import Column
from headrace.sql.ir.types import of_arrow
from headrace.sql.planner import query_of
from tests.support.jars import Jar
from tests.support.sql.interpreter import Rows, rows_of, run

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
    """What came of some queries.

    Attributes:
        outcomes: how many were ``right``, ``wrong``, or refused, by reason.
        wrong: those that were wrong.
    """

    outcomes: Counter[str] = field(default_factory=Counter)
    wrong: list[tuple[str, str]] = field(default_factory=list)

    def run_file(self, session: Any, name: str, limit: int) -> None:
        """Try the first queries of a file."""
        catalyst, columns = Catalyst(session), dict[str, list[Column]]()
        known: dict[str, Rows] = {}
        count = 0
        with duckdb.connect() as database:
            for record in records(text_of(name)):
                if record.kind == "statement":
                    known.clear()
                    self._statement(database, catalyst, columns, record)
                    continue
                if count == limit:
                    return
                count += 1
                for table in columns.keys() - known.keys():
                    rows = database.sql(f"SELECT * FROM {table}").to_arrow_table()
                    known[table] = rows_of(rows, columns[table])
                self._query(catalyst, columns, known, record, name)

    def _statement(
        self, database: Any, catalyst: Catalyst, columns: dict[str, list[Column]], record: Record
    ) -> None:
        try:
            database.execute(record.sql)
        except duckdb.Error:
            self.outcomes["statement not for DuckDB"] += not record.fails
            return
        if found := re.match(r"\s*CREATE TABLE (\w+)", record.sql, re.IGNORECASE):
            schema = database.sql(f"SELECT * FROM {found[1]}").to_arrow_table().schema
            columns[found[1]] = [Column(one.name, of_arrow(one.type)) for one in schema]
            catalyst.declare(found[1], columns[found[1]])

    def _query(
        self,
        catalyst: Catalyst,
        columns: dict[str, list[Column]],
        tables: dict[str, Rows],
        record: Record,
        name: str,
    ) -> None:
        # The corpus divides integers as SQLite does; Spark calls that DIV.
        sql = (
            re.sub(r"(?<![/*])/(?![/*])", " DIV ", record.sql)
            if "R" not in record.types
            else record.sql
        )
        try:
            query = query_of("v", sql, columns, catalyst)
        except PipelineError as error:
            self.outcomes[f"refused: {reason(error.what)}"] += 1
            return
        try:
            answer = run(query.relation, tables).arrow()
        except HeadraceError as error:
            self.outcomes[f"fails as in ANSI mode: {getattr(error, 'condition', error.code)}"] += 1
            return
        if query.order:  # a reader sorts; the bag is what is maintained
            record = Record("query", sql, False, record.types, "rowsort", record.answer)
        is_right = matches(record, answer) or (record.sort == "rowsort" and _as_bag(record, answer))
        self.outcomes["right" if is_right else "wrong"] += 1
        if not is_right:
            self.wrong.append((name, record.sql))


def _as_bag(record: Record, table: pa.Table) -> bool:
    """Return whether rows are the right ones, whatever the order in which the file has them."""
    if any("hashing" in one for one in record.answer):
        return False
    width = max(len(record.types), 1)
    given = list(record.answer)
    rows = sorted(tuple(given[at : at + width]) for at in range(0, len(given), width))
    return matches(
        Record(
            "query", "", False, record.types, "rowsort", tuple(one for row in rows for one in row)
        ),
        table,
    )


def reason(what: str) -> str:
    """Return a refusal without the texts that differ from query to query."""
    if found := re.search(r"\[([A-Z_.]+)\]", what):
        return found[1]
    return re.sub(r":.*", "", what)[:60]
