"""Views with arrays: kept up to date through crashes and rescales, read back, and sent elsewhere."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.checkpoints.views import read_view
from headrace.errors import PipelineError
from headrace.sql.catalyst import Catalyst
from headrace.sql.ir.relations import Column
from headrace.sql.ir.types import of_arrow
from headrace.sql.planner import query_of
from headrace.sqlfile import SqlFile
from tests.property.zsets.driving import befall
from tests.spark.conftest import session
from tests.support.sql.live import pipeline_of, produced, push, random_changes

pytestmark = pytest.mark.spark

SCHEMA = pa.schema(
    [
        pa.field("k", pa.int64(), nullable=False),
        pa.field("words", pa.list_(pa.string())),
        pa.field("line", pa.string()),
    ]
)
QUERIES = {
    "words": "SELECT word, count(*) AS n FROM t LATERAL VIEW explode(split(line, ' ')) x AS word "
    "GROUP BY word",
    "places": "SELECT k, place, word FROM t LATERAL VIEW OUTER posexplode(words) x AS place, word",
    "lists": "SELECT k, collect_list(line) AS l, collect_set(line) AS s FROM t GROUP BY k",
    "first": "SELECT DISTINCT get(words, 0) AS w, size(words) AS n FROM t WHERE array_contains(words, 'a')",
    "same": "SELECT words, count(*) AS n FROM t GROUP BY words",
    "pairs": "SELECT a.k AS x, b.k AS y FROM t a JOIN t b ON a.words = b.words",
    "top": "SELECT k, words, line FROM t ORDER BY words DESC, k, line LIMIT 2",
}


@pytest.fixture(scope="module")
def catalyst() -> Iterator[Catalyst]:
    started = session("local[1]")
    yield Catalyst(started)
    started.stop()


Row = tuple[int, list[str | None] | None, str | None]


def _draw(r: random.Random) -> Row:
    letters = ["a", "b", "", None]
    words = None if r.random() < 0.2 else [r.choice(letters) for _ in range(r.randrange(3))]
    line = None if r.random() < 0.2 else " ".join(r.choice("ab") for _ in range(r.randrange(1, 4)))
    return r.randrange(3), words, line


def _key(words: list[str | None] | None) -> Any:
    """Return what orders arrays: NULL first, and in them NULL before all values."""
    return (-1,) if words is None else tuple((word is not None, word or "") for word in words)


def _answers(rows: list[Row]) -> dict[str, Counter[Any]]:
    """Return what the queries give, in plain Python."""
    by_key: dict[int, list[str]] = {}
    for k, _, line in rows:
        by_key.setdefault(k, []).extend([] if line is None else [line])
    frozen = [(k, None if w is None else tuple(w), line) for k, w, line in rows]
    ordered = sorted(rows, key=lambda row: (row[0], row[2] is not None, row[2] or ""))
    ordered.sort(key=lambda row: _key(row[1]) if row[1] is not None else (), reverse=True)
    ordered.sort(key=lambda row: row[1] is None)
    return {
        "words": Counter(
            Counter(
                word for _, _, line in rows if line is not None for word in line.split(" ")
            ).items()
        ),
        "places": Counter(
            (k, place, word)
            for k, words, _ in rows
            for place, word in (list(enumerate(words or ())) or [(None, None)])
        ),
        "lists": Counter(
            (k, tuple(sorted(lines)), tuple(sorted(set(lines)))) for k, lines in by_key.items()
        ),
        "first": Counter({(w[0], len(w)): 1 for _, w, _ in rows if w is not None and "a" in w}),
        "same": Counter(Counter(w for _, w, _ in frozen).items()),
        "pairs": Counter(
            (a[0], b[0]) for a in frozen for b in frozen if a[1] is not None and a[1] == b[1]
        ),
        "top": Counter((k, None if w is None else tuple(w), line) for k, w, line in ordered[:2]),
    }


@pytest.mark.parametrize("seed", [1, 2, *(pytest.param(n, marks=pytest.mark.soak) for n in (3, 4))])
def test_views_are_right_after_every_step(catalyst: Catalyst, seed: int) -> None:
    print(f"seed {seed}")
    r = random.Random(seed)
    p, _ = pipeline_of(catalyst, {"t": SCHEMA}, QUERIES)
    held: dict[str, Counter[Any]] = {name: Counter() for name in QUERIES}
    with hr.testing.drive(p, workers=r.choice([1, 2, 3]), bins=8) as t:
        for number, (changes, tables) in enumerate(random_changes(r, {"t": lambda: _draw(r)}, 5)):
            if push(t, {"t": SCHEMA}, changes, number):
                befall(t, ("crash", "before_commit", "rescale")[number % 3], number)
            t.run()
            for name, right in _answers(tables["t"]).items():
                held[name].update(produced(t, name))
                assert {row: n for row, n in held[name].items() if n} == right, f"{name}, {number}"


def test_a_view_with_arrays_is_read_back_and_goes_to_files(
    catalyst: Catalyst, tmp_path: Path
) -> None:
    source, out = tmp_path / "in.jsonl", tmp_path / "out"
    source.write_text(
        '{"k": 1, "words": ["a", null], "at": "2024-01-01T00:00:00Z"}\n'
        '{"k": 2, "words": [], "at": "2024-01-01T00:00:01Z"}\n'
        '{"k": 3, "words": null, "at": "2024-01-01T00:00:02Z"}\n'
    )
    file = SqlFile(
        f"""
        CREATE TABLE t (k BIGINT, words ARRAY<STRING>, at TIMESTAMP, WATERMARK FOR at AS at)
        WITH ('connector' = 'filesystem', 'path' = '{source}', 'format' = 'json');
        CREATE MATERIALIZED VIEW v (PRIMARY KEY (k)) AS
        SELECT k, words, array(k, 0) AS pair FROM t WHERE words IS NULL OR size(words) > 0;
        CREATE SINK s WITH ('connector' = 'filesystem', 'path' = '{out}', 'format' = 'json')
        """.replace("CREATE SINK s WITH", "CREATE SINK s FROM v WITH"),
        "f.sql",
    )
    store = str(tmp_path / "state")
    with hr.run(file.pipeline(), storage=store, runner="inline") as job:
        job.drain()
    found = read_view(hr.open_state(store), "v").to_pylist()
    assert sorted(found, key=lambda row: row["k"]) == [
        {"k": 1, "words": ["a", None], "pair": [1, 0]},
        {"k": 3, "words": None, "pair": [3, 0]},
    ]
    lines = "".join(path.read_text() for path in out.rglob("*") if path.is_file())
    assert '"words":["a",null],"pair":[1,0]' in lines.replace(" ", "")


REFUSED = {
    "SELECT explode(map(k, line)) FROM t": "map",
    "SELECT array(struct(k, line)) AS a FROM t": "array of structs",
    "SELECT collect_list(k) OVER (ORDER BY k) AS l FROM t": r"collect_list\(\) with OVER",
    "SELECT split(line, words[0]) AS s FROM t": "constants as the pattern",
    "SELECT split(line, 'a*') AS s FROM t": "may be empty",
    "SELECT stack(2, k, k) FROM t": "STACK",
}


@pytest.mark.parametrize("sql", REFUSED)
def test_what_arrays_cannot_do_is_refused_with_the_reason(catalyst: Catalyst, sql: str) -> None:
    columns = [Column(one.name, of_arrow(one.type), one.nullable) for one in SCHEMA]
    catalyst.declare("t", columns)
    with pytest.raises(PipelineError, match=REFUSED[sql]):
        query = query_of("v", sql, {"t": columns}, catalyst)
        pipeline_of(catalyst, {"t": SCHEMA}, {"v": query.sql})
