"""Transactions of a database, as Debezium sends them through a real Kafka: on real Spark, in SQL."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import headrace as hr
from headrace.checkpoints.views import read_view
from headrace.cli import main
from tests.support.kafka import Kafka, new_topic, producer

pytestmark = pytest.mark.spark

ACCOUNTS = 12
TRANSFERS = 120
#: Not every account has an entry, and an account has several; so both tables are asked.
LOST = """
    SELECT coalesce(sum(cents), 0) AS cents
    FROM (SELECT cents FROM accounts UNION ALL SELECT -cents AS cents FROM entries)
"""


class Bank:
    """A bank's database, and what a connector of Debezium sends of its two tables.

    Each account has the sum of its entries. A transfer changes two accounts, and inserts two
    entries.
    """

    def __init__(self, kafka: Kafka, seed: int) -> None:
        self._r = random.Random(seed)
        self._writer = producer(kafka)
        self.accounts, self.entries = new_topic(kafka, partitions=3), new_topic(kafka, partitions=2)
        self.ends = new_topic(kafka)
        self.cents = dict.fromkeys(range(ACCOUNTS), 0)
        self._entry, self._xid, self._lsn, self._order = 0, 700, 10_000, 0
        #: The messages of the last transaction, for a connector that repeats itself.
        self._last: list[tuple[str, Any, Any, str]] = []

    def snapshot(self) -> None:
        """Send the rows that were there before."""
        for account, cents in self.cents.items():
            self._change(self.accounts, "r", None, {"id": account, "cents": cents}, None)
        self._writer.flush()

    def transfers(self, number: int, *, only: str) -> list[tuple[str, Any, Any, str]]:
        """Make transfers; send what goes to one topic, and return the rest to be sent later."""
        later = []
        for _ in range(number):
            messages = self._transfer()
            for message in messages:
                if message[3] == only:
                    self.send([message])
                else:
                    later.append(message)
        self._writer.flush()
        return later

    def send(self, messages: list[tuple[str, Any, Any, str]]) -> None:
        """Send messages to their topics. A message is sent to the partition of its key."""
        for _, key, value, topic in messages:
            partitions = {self.accounts: 3, self.entries: 2, self.ends: 1}[topic]
            self._writer.produce(
                topic, json.dumps(value), json.dumps(key), partition=hash(key) % partitions
            )
        self._writer.flush()

    def repeated(self) -> list[tuple[str, Any, Any, str]]:
        """Return the last transaction again, as a connector sends it that has been killed."""
        return self._last

    def _transfer(self) -> list[tuple[str, Any, Any, str]]:
        self._xid += 1
        first, second = self._r.sample(range(ACCOUNTS), 2)
        cents = self._r.randrange(1, 100)
        messages = []
        self._order = 0
        for account, change in ((first, -cents), (second, cents)):
            before = {"id": account, "cents": self.cents[account]}
            self.cents[account] += change
            after = {"id": account, "cents": self.cents[account]}
            self._entry += 1
            entry = {"id": self._entry, "cents": change}
            messages.append(self._message(self.accounts, "u", before, after))
            messages.append(self._message(self.entries, "c", None, entry))
        counts = [("public.accounts", 2), ("public.entries", 2), ("public.audit", 7)]
        end = {
            "status": "END",
            "id": f"{self._xid}:{self._lsn}",
            "event_count": 11,
            "data_collections": [{"data_collection": of, "event_count": n} for of, n in counts],
            "ts_ms": 1_700_000_000_000,
        }
        begin = {**end, "status": "BEGIN", "event_count": None, "data_collections": None}
        messages += [("", 0, begin, self.ends), ("", 0, end, self.ends)]
        self._last = messages
        return messages

    def _message(self, topic: str, op: str, before: Any, after: Any) -> tuple[str, Any, Any, str]:
        self._lsn += 8
        self._order += 1
        block = {"id": f"{self._xid}:{self._lsn}", "total_order": self._order}
        event = {"op": op, "before": before, "after": after, "transaction": block}
        return op, after["id"], event, topic

    def _change(self, topic: str, op: str, before: Any, after: Any, block: Any) -> None:
        event = {"op": op, "before": before, "after": after, "transaction": block}
        self.send([(op, after["id"], event, topic)])


def pipeline(kafka: Kafka, bank: Bank, spark: Any, lost: list[int], *, whole: bool) -> hr.Pipeline:
    p = hr.Pipeline("bank")

    block = {"transaction": "transaction", "transaction_order": "number"} if whole else {}
    columns: dict[str, Any] = {"transaction": str | None, "number": int | None} if whole else {}

    def changes(name: str, topic: str) -> hr.Stream:
        source = hr.sources.Kafka(
            topic,
            servers=kafka.bootstrap,
            format=hr.messages.Debezium(hr.messages.Json(), **block),
            schema={"id": int, "cents": int, "op": str, **columns},
            tombstones="drop",
        )
        return p.inject(name, source)

    streams = {
        "public.accounts": changes("accounts", bank.accounts),
        "public.entries": changes("entries", bank.entries),
    }
    if whole:
        boundaries = hr.messages.DebeziumTransactions(hr.messages.Json())
        ends = hr.sources.Kafka(bank.ends, servers=kafka.bootstrap, format=boundaries)
        gate = hr.zsets.transactions(
            "whole",
            streams,
            hr.zsets.Ends(p.inject("ends", ends), status="status"),
            order="number",
            outside="pass",
            repeats="ignore",
        )
        tables = {
            name: gate.table(f"{name}_rows", f"public.{name}", key="id", op="op")
            for name in ("accounts", "entries")
        }
    else:
        tables = {
            name: hr.zsets.table(f"{name}_rows", streams[f"public.{name}"], key="id", op="op")
            for name in ("accounts", "entries")
        }
    views = hr.sql.Views(spark)
    for name, rows in tables.items():
        views.table(name, rows)
    tables["accounts"].select("id", "cents").view("balances", key="id")
    difference = views.view("difference", LOST).view("lost")

    def received(step: int, rows: Any) -> None:
        lost.extend(row["cents"] for row in rows.to_pylist() if row["_weight"] > 0)

    difference.changes_to("out", hr.sinks.Calls(received))
    return p


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.drawn(4, "random queries and pipelines")
def test_a_query_over_two_tables_is_right_at_every_step_if_transactions_are_whole(
    kafka: Kafka, local_spark: Any, tmp_path: Path, whole: bool
) -> None:
    bank = Bank(kafka, seed=5)
    print("seed 5")
    bank.snapshot()
    lost: list[int] = []
    settings = hr.Settings(limit=hr.Limit(rows=40, bytes=1 << 20))

    def caught_up(workers: int) -> None:
        built = pipeline(kafka, bank, local_spark, lost, whole=whole)
        with hr.run(
            built, storage=tmp_path, runner="spark", workers=workers, settings=settings
        ) as job:
            job.catch_up()

    late = bank.transfers(TRANSFERS, only=bank.accounts)
    caught_up(2)
    bank.send([message for message in late if message[3] == bank.ends])
    caught_up(2)
    if whole:
        counted = hr.open_state(tmp_path).head.counts["whole"].counters
        assert counted == {"came": 2 * TRANSFERS, "released": 0, "left_out": 0}
    bank.send([message for message in late if message[3] == bank.entries])
    bank.send(bank.repeated() if whole else [])
    caught_up(3)
    found = {
        row["id"]: row["cents"]
        for row in read_view(hr.open_state(tmp_path), "balances").to_pylist()
    }
    assert found == bank.cents
    if whole:
        assert set(lost) == {0}
        head = hr.open_state(tmp_path).head
        assert head.counts["whole"].counters == {
            "came": 4 * TRANSFERS + 4,
            "released": 4 * TRANSFERS,
            "left_out": 4,
        }
        assert head.counts["whole_counts"].counters["repeated_ends"] == 1
    else:  # (what the same asks of tables whose transactions are torn)
        assert set(lost) - {0}


FILE = """
CREATE TABLE accounts (id BIGINT NOT NULL, cents BIGINT NOT NULL, PRIMARY KEY (id) NOT ENFORCED) WITH (
    'connector' = 'kafka', 'topic' = '{accounts}', 'format' = 'debezium-json',
    'properties.bootstrap.servers' = '{servers}', 'transactions.topic' = '{ends}',
    'transactions.table' = 'public.accounts', 'transactions.outside' = 'pass');
CREATE TABLE entries (id BIGINT NOT NULL, cents BIGINT NOT NULL, PRIMARY KEY (id) NOT ENFORCED) WITH (
    'connector' = 'kafka', 'topic' = '{entries}', 'format' = 'debezium-json',
    'properties.bootstrap.servers' = '{servers}', 'transactions.topic' = '{ends}',
    'transactions.table' = 'public.entries', 'transactions.repeats' = 'ignore');
CREATE MATERIALIZED VIEW lost AS {query};
"""


def test_a_file_of_sql_keeps_the_transactions_of_its_tables_whole(
    kafka: Kafka, tmp_path: Path
) -> None:
    bank = Bank(kafka, seed=6)
    print("seed 6")
    bank.snapshot()
    late = bank.transfers(30, only=bank.accounts)
    topics = {"accounts": bank.accounts, "entries": bank.entries, "ends": bank.ends}
    place = tmp_path / "bank.sql"
    place.write_text(FILE.format(servers=kafka.bootstrap, query=LOST, **topics))
    run = ["sql", str(place), "--storage", str(tmp_path / "it"), "--runner", "inline"]
    for messages in ([], late, bank.repeated()):
        bank.send(messages)
        found = CliRunner().invoke(main, [*run, "--available-now", "--rows", "7"])
        assert found.exit_code == 0, found.output
    last = hr.open_state(tmp_path / "it").head
    answers = [
        read_view(hr.open_state(tmp_path / "it", step=step), "lost").to_pylist()
        for step in range(1, last.step + 1)
    ]
    assert [answer for answer in answers if answer not in ([], [{"cents": 0}])] == []
    assert answers[-1] == [{"cents": 0}]
    (counted,) = (of.counters for of in last.counts.values() if "released" in of.counters)
    assert counted == {"came": 4 * 30 + 4, "released": 4 * 30, "left_out": 4}
