"""Transactions over several tables: after each step views are of the first so many, and whole."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.errors import BadInput, PipelineError
from headrace.testing import Harness
from headrace.zsets import Ends, Sum, Transactions
from tests.property.zsets.driving import EVENTS, run_steps

TIME = pa.field("at", pa.timestamp("us", "UTC"))
ROW = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field("cents", pa.int64(), nullable=False),
        pa.field("op", pa.string()),
        pa.field("tx", pa.string()),
        pa.field("n", pa.int64()),
        TIME,
    ]
)
END = pa.schema(
    [
        pa.field("id", pa.string()),
        pa.field("debits", pa.int64()),
        pa.field("credits", pa.int64()),
        pa.field("fees", pa.int64()),
        TIME,
    ]
)
TABLES = ("debits", "credits", "fees")
START = datetime(2024, 1, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def _inject(p: hr.Pipeline, name: str, schema: pa.Schema) -> hr.Stream:
    return p.inject(name, hr.sources.Iterable([], schema, event_time="at"))


def _gate(p: hr.Pipeline, **rules: Any) -> Transactions:
    if rules.get("repeats") == "ignore":
        rules["order"] = "n"
    streams = {table: _inject(p, table, ROW) for table in TABLES}
    ends = Ends(_inject(p, "ends", END), counts={table: table for table in TABLES})
    return hr.zsets.transactions("whole", streams, ends, transaction="tx", **rules)


def _row(tx: str | None, id_: int, cents: int, op: str = "U", n: int = 1) -> dict[str, Any]:
    return {"id": id_, "cents": cents, "op": op, "tx": tx, "n": n, "at": None}


def _end(tx: str | None, **counts: int) -> dict[str, Any]:
    return {"id": tx, **{table: counts.get(table, 0) for table in TABLES}, "at": None}


def _push(t: Harness, **pushes: list[dict[str, Any]]) -> None:
    for injector, rows in pushes.items():
        t.push_many(injector, rows, at=[0] * len(rows))
    t.run()


def _bag(t: Harness, name: str, *columns: str) -> Counter[Any]:
    found: Counter[Any] = Counter()
    for made in t.outputs(name):
        found[tuple(getattr(made.value, of) for of in columns)] += made.value._weight
    return found


# -- any transactions, in any skew ----------------------------------------------------------------


@dataclass
class Transaction:
    """What happens in a transaction, and what of it has come."""

    name: str
    rows: dict[str, list[dict[str, Any]]]
    has_end: bool = True
    came: set[tuple[str, int]] = field(default_factory=set)
    ended: bool = False

    @property
    def is_whole(self) -> bool:
        return self.ended and len(self.came) == sum(map(len, self.rows.values()))


def history(r: random.Random, number: int) -> list[Transaction]:
    """Return transactions in the order of their commits, in each of which credits and fees are debits."""
    found = []
    balances = {table: set[int]() for table in TABLES}
    for position in range(number):
        name = f"t{position}"
        has_end = r.random() < 0.9
        rows: dict[str, list[dict[str, Any]]] = {table: [] for table in TABLES}
        for _ in range(r.randrange(3)):
            cents, fee = r.randrange(1, 9), r.randrange(3)
            id_ = r.randrange(4)
            there = [id_ in balances[table] for table in TABLES]
            for table, amount in zip(TABLES, (cents + fee, cents, fee), strict=True):
                rows[table].append(_row(name, id_, amount))
                if has_end:
                    balances[table].add(id_)
            if any(there) and r.random() < 0.3:
                for table in TABLES:
                    rows[table].append(_row(name, id_, 0, "D"))
                    if has_end:
                        balances[table].discard(id_)
        for table in TABLES:
            for n, row in enumerate(rows[table]):
                row["n"] = n
        found.append(Transaction(name, rows, has_end))
    return found


def _interleaved(
    r: random.Random, transactions: list[Transaction], table: str, *, ordered: bool
) -> list[Any]:
    """Return a table's records as a log has them that takes in several transactions at once."""
    waiting = [list(one.rows[table]) for one in transactions]
    if not ordered:
        for rows in waiting:
            r.shuffle(rows)
    found = []
    while any(waiting):
        several = [rows for rows in waiting if rows][: r.choice([1, 1, 3])]
        found.append(r.choice(several).pop(0))
    return found


def _queues(
    r: random.Random, transactions: list[Transaction], *, ordered: bool
) -> dict[str, list[Any]]:
    """Return what comes from each injector: rows of tables, and ends in the order of commits."""
    ends = [
        _end(one.name, **{table: len(rows) for table, rows in one.rows.items()})
        for one in transactions
        if one.has_end
    ]
    tables = {table: _interleaved(r, transactions, table, ordered=ordered) for table in TABLES}
    return {**tables, "ends": ends}


def _repeated(r: random.Random, records: list[Any]) -> list[Any]:
    """Return records, some of which come again later, as of a source that begins again."""
    found = list(records)
    for _ in range(r.randrange(4)):
        if found:
            first = r.randrange(len(found))
            again = found[first : first + r.randrange(1, 4)]
            at = r.randrange(first + len(again), len(found) + 1)
            found[at:at] = again
    return found


def _cut(r: random.Random, queues: dict[str, list[Any]]) -> list[dict[str, list[Any]]]:
    """Return what comes in each step: of each queue a part, so that some are far behind others."""
    left = {name: list(queue) for name, queue in queues.items()}
    steps = []
    while any(left.values()):
        slow = r.choice([*left])
        step = {}
        for name, queue in left.items():
            number = r.randrange(0, 2 if name == slow else 6)
            step[name], left[name] = queue[:number], queue[number:]
        steps.append(step)
    return steps


def _applied(transactions: list[Transaction], table: str) -> dict[int, int]:
    """Return what a table holds after some transactions, one after the other."""
    found: dict[int, int] = {}
    for one in transactions:
        for row in one.rows[table]:
            found.pop(row["id"], None)
            if row["op"] != "D":
                found[row["id"]] = row["cents"]
    return found


def _visible(transactions: list[Transaction]) -> list[Transaction]:
    """Return the transactions that views are of: all up to the first that waits.

    One without an end has no place in the order, and nothing waits for it.
    """
    committed = [one for one in transactions if one.has_end]
    whole = [one.is_whole for one in committed]
    return committed[: [*whole, False].index(False)]


def _balance(**tables: hr.zsets.ZStream) -> None:
    """Add views of tables, and one of what is debited and not credited, which is to be nothing."""
    sides = []
    for name, rows in tables.items():
        rows.view(f"{name}_view", key="id")
        sides.append(
            rows.select("cents")
            if name == "debits"
            else rows.select(
                cents=_negative, types={"cents": pa.field("", pa.int64(), nullable=False)}
            )
        )
    first, *others = sides
    first.union(*others).group("all", (), total=Sum("cents")).view("balance")


def _negative(rows: hr.zsets.Rows) -> Any:
    return -rows["cents"]


@settings(max_examples=25, deadline=None)
@given(
    st.integers(0, 1 << 30),
    st.lists(EVENTS, min_size=30, max_size=30),
    st.sampled_from([1, 2, 4]),
    st.booleans(),
)
def test_views_are_of_the_first_whole_transactions_after_every_step(
    seed: int, events: list[str | None], workers: int, numbered: bool
) -> None:
    """If rows are numbered, they come in any order, and some come again, as do some ends."""
    print(f"seed {seed}")
    r = random.Random(seed)
    transactions = history(r, r.randrange(1, 12))
    by_name = {one.name: one for one in transactions}
    queues = _queues(r, transactions, ordered=not numbered)
    if numbered:
        queues = {name: _repeated(r, queue) for name, queue in queues.items()}
    p = hr.Pipeline("p")
    whole = _gate(p, repeats="ignore" if numbered else "refuse")
    _balance(**{table: whole.table(f"{table}_rows", table, key="id", op="op") for table in TABLES})
    held: dict[str, Counter[Any]] = {table: Counter() for table in TABLES}
    totals: Counter[Any] = Counter()
    pushes = _cut(r, queues)

    def after_step(t: Harness, number: int) -> None:
        for table in TABLES:
            for row in pushes[number][table]:
                by_name[row["tx"]].came.add((table, row["n"]))
        for row in pushes[number]["ends"]:
            by_name[row["id"]].ended = True
        visible = _visible(transactions)
        for table in TABLES:
            held[table].update(_bag(t, f"{table}_view", "id", "cents"))
            expected = _applied(visible, table)
            assert +held[table] == Counter(expected.items())
            assert not -held[table]
        totals.update(_bag(t, "balance", "total"))
        assert {total for (total,), weight in totals.items() if weight} <= {0, None}

    steps = [(step, events[number % len(events)]) for number, step in enumerate(pushes)]
    run_steps(p, steps, after_step, workers=workers)


def test_without_a_gate_there_are_steps_in_which_money_is_lost() -> None:
    """What the tests of balances are worth: they see it if transactions are not kept whole."""
    p = hr.Pipeline("p")
    tables = {
        table: hr.zsets.table(f"{table}_rows", _inject(p, table, ROW), key="id", op="op").select(
            "id", "cents"
        )
        for table in TABLES
    }
    _balance(**tables)
    with hr.testing.drive(p) as t:
        _push(t, debits=[_row("a", 1, 5)])
        assert _bag(t, "balance", "total") == {(5,): 1}
        _push(t, credits=[_row("a", 1, 3)], fees=[_row("a", 1, 2)])
        assert _bag(t, "balance", "total") == {(5,): -1, (0,): 1}


# -- one thing at a time --------------------------------------------------------------------------


def test_rows_wait_for_the_end_and_for_all_tables() -> None:
    p = hr.Pipeline("p")
    whole = _gate(p)
    whole.table("d", "debits", key="id", op="op")
    whole.table("c", "credits", key="id", op="op")
    with hr.testing.drive(p, workers=2) as t:
        _push(t, debits=[_row("a", 1, 5)])
        _push(t, ends=[_end("a", debits=1, credits=1)])
        assert not t.outputs("d") + t.outputs("c")
        _push(t, credits=[_row("a", 1, 5)])
        assert [_bag(t, name, "id", "cents") for name in ("d", "c")] == [{(1, 5): 1}, {(1, 5): 1}]


def test_transactions_come_in_the_order_of_their_ends() -> None:
    p = hr.Pipeline("p")
    whole = _gate(p)
    whole.table("d", "debits", key="id", op="op")
    with hr.testing.drive(p, workers=2) as t:
        _push(
            t,
            debits=[_row("second", 1, 2)],
            ends=[_end("first", debits=1), _end("second", debits=1)],
        )
        assert not t.outputs("d")
        _push(t, debits=[_row("first", 1, 1)])
        assert _bag(t, "d", "id", "cents") == {(1, 2): 1}


def test_of_several_transactions_of_a_key_the_last_counts_whichever_came_first() -> None:
    names = [f"t{n}" for n in range(8)]
    rows = [_row(name, 1, n) for n, name in enumerate(names)]
    for order in (rows, rows[::-1]):
        p = hr.Pipeline("p")
        whole = _gate(p)
        whole.table("d", "debits", key="id", op="op")
        with hr.testing.drive(p, workers=2) as t:
            _push(t, debits=order, ends=[_end(name, debits=1) for name in names])
            assert _bag(t, "d", "id", "cents") == {(1, 7): 1}


def test_of_several_rows_of_a_key_in_a_transaction_the_last_counts() -> None:
    p = hr.Pipeline("p")
    whole = _gate(p)
    whole.table("d", "debits", key="id", op="op")
    with hr.testing.drive(p, workers=2) as t:
        _push(t, debits=[_row("a", 1, 1), _row("a", 1, 2)])
        _push(t, debits=[_row("a", 1, 3)], ends=[_end("a", debits=4)])
        _push(t, debits=[_row("a", 1, 4)])
        assert _bag(t, "d", "id", "cents") == {(1, 4): 1}


def test_equal_rows_of_a_transaction_are_as_many_as_they_are() -> None:
    p = hr.Pipeline("p")
    whole = _gate(p)
    whole.table("d", "debits").select("id").compute("ids")
    with hr.testing.drive(p, workers=2) as t:
        _push(t, debits=[_row("a", 1, 1), _row("a", 1, 1)])
        _push(t, debits=[_row("a", 1, 1)], ends=[_end("a", debits=3)])
        assert _bag(t, "ids", "id") == {(1,): 3}


def test_a_transaction_without_rows_of_the_tables_holds_nothing_up() -> None:
    p = hr.Pipeline("p")
    whole = _gate(p)
    whole.table("d", "debits", key="id")
    with hr.testing.drive(p) as t:
        _push(t, debits=[_row("a", 1, 1)], ends=[_end("empty"), _end("a", debits=1)])
        assert _bag(t, "d", "id") == {(1,): 1}


def test_more_rows_than_the_end_says_are_an_error_that_names_them() -> None:
    for early in (True, False):
        p = hr.Pipeline("p")
        _gate(p).table("d", "debits", key="id")
        rows, end = [_row("a", 1, 1), _row("a", 2, 1)], [_end("a", debits=1, credits=1)]
        with hr.testing.drive(p) as t:
            _push(t, **({"debits": rows} if early else {"ends": end}))
            with pytest.raises(BadInput, match="'a' has 1 more rows in 'debits' than its end says"):
                _push(t, **({"ends": end} if early else {"debits": rows}))


def test_ends_of_one_transaction_that_differ_are_an_error() -> None:
    for together in (True, False):
        p = hr.Pipeline("p")
        _gate(p, repeats="ignore").table("d", "debits", key="id")
        with hr.testing.drive(p) as t, pytest.raises(BadInput, match="ends twice, with different"):
            ends = [_end("a", debits=1), _end("a", debits=2)]
            for pushed in [ends] if together else [ends[:1], ends[1:]]:
                _push(t, ends=pushed)


@pytest.mark.parametrize("what", ["rows", "end", "both"])
def test_what_is_repeated_is_refused_or_counted_and_left_out(what: str) -> None:
    row, end = [_row("a", 1, 1)], [_end("a", debits=1)]
    again: dict[str, Any] = {}
    again |= {} if what == "end" else {"debits": row}
    again |= {} if what == "rows" else {"ends": end}
    for repeats in ("refuse", "ignore"):
        p = hr.Pipeline("p")
        _gate(p, repeats=repeats).table("d", "debits").select("id").compute("ids")
        with hr.testing.drive(p, workers=2) as t:
            _push(t, debits=row, ends=end)
            if repeats == "refuse":
                with pytest.raises(BadInput, match="of transaction 'a' came after it was whole"):
                    _push(t, **again)
                continue
            _push(t, **again)
            assert _bag(t, "ids", "id") == {(1,): 1}
            counted = t.counts("whole_counts").counters
            assert counted["repeated_rows"] == (what != "end")
            assert counted["repeated_ends"] == (what != "rows")
            assert t.counts("whole").counters == {
                "came": 1 + (what != "end"),
                "released": 1,
                "left_out": what != "end",
            }


def test_rows_that_are_repeated_while_their_transaction_waits_for_its_turn_are_left_out() -> None:
    p = hr.Pipeline("p")
    _gate(p, repeats="ignore").table("d", "debits").select("id").compute("ids")
    with hr.testing.drive(p, workers=2) as t:
        _push(t, debits=[_row("b", 1, 1)], ends=[_end("a", debits=1), _end("b", debits=1)])
        _push(t, debits=[_row("b", 1, 1)], ends=[_end("b", debits=1), _end("a", debits=1)])
        assert not t.outputs("ids")
        _push(t, debits=[_row("a", 2, 1)])
        assert _bag(t, "ids", "id") == {(1,): 1, (2,): 1}
        assert t.counts("whole_counts").counters["repeated_ends"] == 2


def test_what_was_whole_is_forgotten_after_a_time() -> None:
    p = hr.Pipeline("p")
    _gate(p, remember="1m").table("d", "debits").select("id").compute("ids")
    with hr.testing.drive(p) as t:
        t.clock(START)
        _push(t, debits=[_row("a", 1, 1)], ends=[_end("a", debits=1)])
        assert t.state("whole_counts", "a")["done"] is not None
        t.clock(START + timedelta(minutes=2))
        _push(t, debits=[_row("b", 1, 1)])
        assert t.state("whole_counts", "a")["done"] is None
        _push(t, debits=[_row("a", 1, 1)], ends=[_end("a", debits=1)])
        assert _bag(t, "ids", "id") == {(1,): 2}


def test_rows_without_a_transaction_are_refused_unless_they_may_pass() -> None:
    p = hr.Pipeline("p")
    _gate(p).table("d", "debits", key="id")
    with hr.testing.drive(p) as t, pytest.raises(BadInput, match="'tx' is null") as refused:
        _push(t, debits=[_row("a", 1, 1), _row(None, 1, 1)])
    assert 'outside="pass"' in str(refused.value)


def test_rows_without_a_transaction_come_at_once_and_before_those_of_transactions() -> None:
    p = hr.Pipeline("p")
    _gate(p, outside="pass").table("d", "debits", key="id", op="op")
    with hr.testing.drive(p, workers=2) as t:
        _push(t, debits=[_row(None, 1, 1), _row(None, 2, 1), _row(None, 1, 2)])
        assert _bag(t, "d", "id", "cents") == {(1, 2): 1, (2, 1): 1}
        _push(t, debits=[_row(None, 1, 3), _row("a", 1, 4)], ends=[_end("a", debits=1)])
        assert _bag(t, "d", "id", "cents") == {(1, 2): -1, (1, 4): 1}


def test_an_end_without_an_id_is_an_error() -> None:
    p = hr.Pipeline("p")
    _gate(p).table("d", "debits", key="id")
    with hr.testing.drive(p) as t, pytest.raises(BadInput, match="ends without an id"):
        _push(t, ends=[_end(None)])


def test_rows_with_numbers_are_in_their_order_and_recognised_if_they_come_again() -> None:
    p = hr.Pipeline("p")
    whole = _gate(p, repeats="ignore")
    whole.table("d", "debits", key="id", op="op")
    with hr.testing.drive(p, workers=2) as t:
        second, first = _row("a", 1, 2, n=2), _row("a", 1, 1, n=1)
        _push(t, debits=[second, second], ends=[_end("a", debits=2, credits=1)])
        _push(t, debits=[second])
        assert not t.outputs("d")
        _push(t, debits=[first, second], credits=[_row("a", 1, 1)])
        assert _bag(t, "d", "id", "cents") == {(1, 2): 1}
        assert t.counts("whole_counts").counters["repeated_rows"] == 3
        assert t.counts("whole").counters == {"came": 6, "released": 3, "left_out": 3}
        assert t.state("whole_counts", "a")["seen"] == t.state("whole", "a")["rows_debits"] == {}


def test_a_row_that_comes_again_while_its_transaction_waits_is_refused() -> None:
    for together in (True, False):
        p = hr.Pipeline("p")
        _gate(p, order="n").table("d", "debits", key="id")
        rows = [_row("a", 1, 1, n=4)] * 2
        with hr.testing.drive(p) as t, pytest.raises(BadInput, match="row 4 of transaction 'a'"):
            for pushed in [rows] if together else [rows[:1], rows[1:]]:
                _push(t, debits=pushed)


def test_different_rows_of_one_number_are_an_error() -> None:
    p = hr.Pipeline("p")
    _gate(p, repeats="ignore").table("d", "debits", key="id")
    with hr.testing.drive(p) as t:
        _push(t, debits=[_row("a", 1, 1, n=4)])
        with pytest.raises(BadInput, match="two different rows have the number 4"):
            _push(t, debits=[_row("a", 2, 1, n=4)], ends=[_end("a", debits=1)])


def test_rows_without_a_number_are_an_error() -> None:
    p = hr.Pipeline("p")
    _gate(p, order="n").table("d", "debits", key="id")
    with hr.testing.drive(p) as t, pytest.raises(BadInput, match=r"no number .* 'n' is null"):
        _push(t, debits=[{**_row("a", 1, 1), "n": None}])


def test_ends_in_several_partitions_are_refused_since_they_have_no_order() -> None:
    p = hr.Pipeline("p")
    _gate(p).table("d", "debits", key="id")
    with hr.testing.drive(p) as t:
        t.push("ends", _end("a", debits=1), at=0, partition="0")
        t.run()
        t.push("debits", _row("a", 1, 1), at=0, partition="0")
        t.push("debits", _row("a", 1, 1), at=0, partition="1")
        t.push("ends", _end("b", debits=1), at=0, partition="1")
        with pytest.raises(PipelineError, match=r"2 partitions \('0', '1'\).* no order") as refused:
            t.run()
        assert "injector 'ends'" in str(refused.value)


# -- transactions that wait -----------------------------------------------------------------------


def test_transactions_that_wait_are_a_table_of_their_own() -> None:
    p = hr.Pipeline("p")
    whole = _gate(p)
    whole.table("d", "debits", key="id")
    whole.waiting.view("waiting", key="transaction")
    columns = ("transaction", "since", "ended", "rows")
    held: Counter[Any] = Counter()
    with hr.testing.drive(p, workers=2) as t:
        for number, pushed in enumerate(
            [
                {"debits": [_row("a", 1, 1)], "ends": [_end("b", debits=1)]},
                {"debits": [_row("a", 2, 1), _row("c", 1, 1)], "ends": [_end("c", debits=1)]},
                {"ends": [_end("a", debits=2)]},
                {"debits": [_row("b", 1, 1)]},
            ]
        ):
            t.clock(START + timedelta(seconds=number))
            _push(t, **pushed)
            held.update(_bag(t, "waiting", *columns))
            # (c is whole, and waits for its turn alone: nothing of it is missing.)
            assert (
                +held
                == [
                    {("a", START, False, 1): 1, ("b", START, True, 0): 1},
                    {("a", START, False, 2): 1, ("b", START, True, 0): 1},
                    {("b", START, True, 0): 1},
                    {},
                ][number]
            )
        assert t.counts("whole").counters == {"came": 4, "released": 4, "left_out": 0}


def test_a_transaction_that_waits_for_too_long_fails_the_step_and_says_what_is_missing() -> None:
    for pushed, why in (
        ({"debits": [_row("a", 1, 1)]}, "its end has not come"),
        ({"ends": [_end("a", credits=2)]}, "2 rows of 'credits' has not come"),
    ):
        p = hr.Pipeline("p")
        _gate(p, within="1m").table("d", "debits", key="id")
        with hr.testing.drive(p) as t:
            t.clock(START)
            _push(t, **pushed)
            t.clock(START + timedelta(seconds=59))
            t.run()
            t.clock(START + timedelta(seconds=60))
            with pytest.raises(BadInput, match="'a' has waited since 2024-01-01T00:00:00") as late:
                t.run()
            assert why in str(late.value)
            assert 'overdue="give_up"' in str(late.value)


def test_a_transaction_that_waits_for_too_long_can_be_given_up() -> None:
    p = hr.Pipeline("p")
    whole = _gate(p, within="1m", overdue="give_up", repeats="ignore")
    whole.table("d", "debits").select("id").compute("ids")
    whole.given_up("debits").select("id").compute("lost")
    whole.waiting.view("waiting")
    with hr.testing.drive(p, workers=2) as t:
        t.clock(START)
        _push(
            t,
            debits=[_row("a", 1, 1), _row("b", 2, 1), _row("endless", 3, 1)],
            ends=[_end("a", debits=2), _end("b", debits=1)],
        )
        assert not t.outputs("ids")
        t.clock(START + timedelta(minutes=1))
        t.run()
        assert _bag(t, "ids", "id") == {(2,): 1}
        assert _bag(t, "lost", "id") == {(1,): 1, (3,): 1}
        assert t.counts("whole_counts").counters["given_up"] == 2
        assert not +_bag(t, "waiting", "transaction") - Counter({("a",): 1, ("endless",): 1})
        # What comes of them later is left out, too.
        _push(t, debits=[_row("a", 4, 1)], ends=[_end("endless", debits=1)])
        _push(t, debits=[_row("c", 5, 1)], ends=[_end("c", debits=1)])
        assert _bag(t, "ids", "id") == {(5,): 1}
        counted = t.counts("whole_counts").counters
        assert (counted["repeated_rows"], counted["repeated_ends"]) == (1, 1)
        assert t.counts("whole").counters == {"came": 5, "released": 2, "left_out": 3}


def test_nothing_is_kept_of_transactions_that_went_but_that_they_did() -> None:
    p = hr.Pipeline("p")
    _gate(p, remember="1m").table("d", "debits", key="id")
    with hr.testing.drive(p, workers=2) as t:
        t.clock(START)
        for number in range(40):
            name = f"t{number}"
            _push(t, debits=[_row(name, 1, 1)])
            _push(t, ends=[_end(name, debits=1)])
        t.clock(START + timedelta(minutes=2))
        _push(t, debits=[_row("last", 1, 1)])
        assert t.keys("whole") == t.keys("whole_counts") == ["last"]
        (key,) = t.keys("whole_order")
        state = t.state("whole_order", key)
        assert state["queue"] == state["known"] == {}


@settings(max_examples=15, deadline=None)
@given(
    st.integers(0, 1 << 30),
    st.lists(EVENTS, min_size=30, max_size=30),
    st.lists(st.integers(0, 30), min_size=30, max_size=30),
)
def test_what_waits_for_too_long_is_given_up_as_if_it_had_never_been(
    seed: int, events: list[str | None], seconds: list[int]
) -> None:
    """A minute is allowed. The clock moves by some seconds after each step."""
    print(f"seed {seed}")
    r = random.Random(seed)
    transactions = history(r, r.randrange(1, 12))
    by_name = {one.name: one for one in transactions}
    p = hr.Pipeline("p")
    whole = _gate(p, within="1m", overdue="give_up", repeats="ignore")
    for table in TABLES:
        rows = whole.table(f"{table}_rows", table, key="id", op="op", ignore_missing=True)
        rows.view(f"{table}_view", key="id")
        whole.given_up(table).select("id", "cents").compute(f"{table}_lost")
    pushes = _cut(r, _queues(r, transactions, ordered=False))
    held: dict[str, Counter[Any]] = {table: Counter() for table in TABLES}
    since: dict[str, datetime] = {}
    given_up: set[str] = set()
    lost = seen_lost = 0

    def after_step(t: Harness, number: int) -> None:
        nonlocal lost, seen_lost
        for table, rows in pushes[number].items():
            for row in rows:
                name = row["id"] if table == "ends" else row["tx"]
                one = by_name[name]
                since.setdefault(name, t.now)
                if name in given_up:
                    continue
                if table == "ends":
                    one.ended = True
                else:
                    one.came.add((table, row["n"]))
        for name, first in since.items():
            one = by_name[name]
            if not one.is_whole and name not in given_up and t.now - first >= MINUTE:
                given_up.add(name)
                lost += len(one.came)
        visible = _visible([one for one in transactions if one.name not in given_up])
        for table in TABLES:
            held[table].update(_bag(t, f"{table}_view", "id", "cents"))
            assert +held[table] == Counter(_applied(visible, table).items())
            seen_lost += sum(_bag(t, f"{table}_lost", "id", "cents").values())
        assert t.counts("whole_counts").counters["given_up"] == len(given_up)
        assert seen_lost == lost
        t.clock(t.now + timedelta(seconds=seconds[number % len(seconds)]))

    steps = [(step, events[number % len(events)]) for number, step in enumerate(pushes)]
    run_steps(p, steps, after_step)


def test_how_long_transactions_may_wait_can_be_changed() -> None:
    def built(within: str | None) -> hr.Pipeline:
        p = hr.Pipeline("p")
        _gate(p, within=within).table("d", "debits", key="id")
        return p

    with hr.testing.drive(built(None)) as t:
        t.clock(START)
        _push(t, debits=[_row("a", 1, 1)])
        for within, seconds in (("1m", 10), ("5m", 70), (None, 400), ("10m", 500)):
            t.resume(pipeline=built(within))
            t.clock(START + timedelta(seconds=seconds))
            _push(t, debits=[_row("a", seconds, 1)])
        t.clock(START + timedelta(minutes=10))
        with pytest.raises(BadInput, match="'a' has waited since 2024-01-01T00:00:00"):
            t.run()


def test_nothing_goes_by_the_watermark_behind_rows_that_wait() -> None:
    p = hr.Pipeline("p")
    rows = _gate(p).table("d", "debits", key="id")
    totals = rows.group("totals", "at", n=hr.zsets.Count())
    for refused in (
        lambda: rows.on_time("it", "at"),
        lambda: totals.final("it", {"at": "0s"}),
    ):
        with pytest.raises(
            PipelineError, match="'whole' holds rows until their transaction is whole"
        ):
            refused()


# -- how it is declared ---------------------------------------------------------------------------


class Counted(msgspec.Struct):
    data_collection: str
    event_count: int


class Boundary(msgspec.Struct):
    status: str
    id: int
    data_collections: list[Counted] | None
    by_table: dict[str, int]
    at: datetime | None = None


@pytest.mark.parametrize("counts", ["data_collections", "by_table"])
def test_ends_may_have_lists_or_maps_of_counts_and_be_among_others(counts: str) -> None:
    p = hr.Pipeline("p")
    schema = ROW.set(3, pa.field("tx", pa.int32()))
    rows = _inject(p, "rows", schema)
    boundaries = p.inject("ends", hr.sources.Iterable([], Boundary, event_time="at"))
    whole = hr.zsets.transactions(
        "whole",
        {"shop.rows": rows},
        Ends(boundaries, counts=counts, status="status"),
        transaction="tx",
    )
    whole.table("t", "shop.rows").select("id").compute("ids")
    with hr.testing.drive(p, workers=2) as t:

        def boundary(status: str, tx: int, **tables: int) -> None:
            several = [Counted(name.replace("_", "."), n) for name, n in tables.items()]
            by_table = {one.data_collection: one.event_count for one in several}
            t.push("ends", Boundary(status, tx, several or None, by_table), at=0)

        boundary("BEGIN", 7)
        t.push_many("rows", [{**_row("", 1, 1), "tx": 7}], at=[0])
        t.run()
        assert not t.outputs("ids")
        boundary("END", 7, shop_other=3, shop_rows=2)
        t.push_many("rows", [{**_row("", 2, 1), "tx": 7}], at=[0])
        t.run()
        assert _bag(t, "ids", "id") == {(1,): 1, (2,): 1}


def test_what_is_declared_wrongly_is_refused_when_the_pipeline_is_built() -> None:
    p = hr.Pipeline("p")
    rows, ends = _inject(p, "rows", ROW), _inject(p, "ends", END)
    floats = _inject(p, "floats", ROW.set(3, pa.field("tx", pa.float64())))
    other = _inject(p, "other", ROW.set(3, pa.field("tx", pa.int64())))
    taken = _inject(p, "taken", ROW.append(pa.field("_turn", pa.int64())))
    good = Ends(ends, counts={"t": "debits"})

    def build(tables: dict[str, Any], ends: Ends = good, **more: Any) -> None:
        hr.zsets.transactions("it", tables, ends, **{"transaction": "tx", **more})

    for refused, why in (
        (lambda: build({}), "no table"),
        (lambda: build({"t": rows}, transaction="nothing"), "no column 'nothing'"),
        (lambda: build({"t": rows}, Ends(ends, id="nothing", counts={})), "no column 'nothing'"),
        (lambda: build({"t": rows}, Ends(ends, counts="debits")), "of type int64"),
        (lambda: build({"t": rows}, Ends(ends, counts={"x": "debits"})), "no such table"),
        (lambda: build({"t": rows}, Ends(ends, counts={"t": "id"})), "no whole number"),
        (lambda: build({"t": rows}, Ends(ends, counts={}, status="debits")), "of type int64"),
        (lambda: build({"t": floats}), "a text or a whole number"),
        (lambda: build({"t": other}), "of type int64, and those of the ends are string"),
        (lambda: build({"t": taken}), "_turn"),
        (lambda: build({"t": rows, "u": rows}), "given twice"),
        (lambda: build({"t": rows}, outside="drop"), "'drop' is not"),
        (lambda: build({"t": rows}, repeats="ignore"), "nothing says which row is repeated"),
        (lambda: build({"t": rows}, order="op"), "no whole number"),
        (lambda: build({"t": rows}, within="0s"), "not above 0"),
    ):
        with pytest.raises(PipelineError, match=why):
            refused()
    made = p.compute("made", hr.ops.Running(debits=hr.ops.Count()), keys={other: "tx"})
    with pytest.raises(PipelineError, match="a computation produces the ends"):
        build({"t": rows}, Ends(made, id="debits", counts={}))
    whole = hr.zsets.transactions("it", {"t": rows}, good, transaction="tx")
    with pytest.raises(PipelineError, match="no table 'x'"):
        whole.table("x", "x")
