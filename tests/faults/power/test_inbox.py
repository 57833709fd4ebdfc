"""A batch that a pipeline has read stays, though its producer died before it was durable.

Else its number would be given to another batch, which the pipeline takes for read: it would never be read.
"""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

import headrace as hr
from headrace.storage import LocalStore
from tests.faults.power.disk import Disk
from tests.faults.power.standins import a_process_of_its_own, used_by_stores
from tests.faults.power.worlds import STORAGE
from tests.support.faults import SimulatedCrash
from tests.support.inboxes import items, pipeline, producer, run_until_idle

INBOX = "/other/inbox"


class Told:
    """What the world was told, by delivery."""

    def __init__(self) -> None:
        self.rows: dict[int, list[tuple[str, int, int]]] = {}

    def take(self, step: int, rows: Any) -> None:
        found = [(row["who"], row["batch"], row["n"]) for row in rows.to_pylist()]
        assert self.rows.setdefault(step, found) == found

    def all(self) -> list[tuple[str, int, int]]:
        return sorted(row for rows in self.rows.values() for row in rows)


def read(told: Told) -> None:
    """Let a pipeline read what is there, in a process of its own."""
    with a_process_of_its_own():
        sink = hr.sinks.Calls(told.take, idempotent=True)
        run_until_idle(pipeline(INBOX, sink), LocalStore(STORAGE))


def append(number: int) -> None:
    """Append a batch of two records, in a process of its own."""
    with a_process_of_its_own():
        producer(INBOX, "p").append(items("p", number, 2))


def producer_that_dies_before_its_batch_is_durable(disk: Disk, number: int) -> None:
    def moment(what: str) -> None:
        if what.startswith("before fsync") and what.endswith("/from-p"):
            raise SimulatedCrash

    disk.moment = moment
    with contextlib.suppress(SimulatedCrash):
        append(number)
    disk.moment = lambda what: None


def what_is_told_after_power_loss() -> list[tuple[str, int, int]]:
    disk, told = Disk(), Told()
    with used_by_stores(disk):
        append(1)
        producer_that_dies_before_its_batch_is_durable(disk, 2)
        read(told)
        assert [batch for _, batch, _ in told.all()] == [1, 1, 2, 2], "what all see is read"
    with used_by_stores(disk.after_loss(None)):
        append(3)  # (the producer does not remember what became of the second)
        read(told)
    return told.all()


def test_what_is_appended_after_power_loss_is_read_though_a_batch_was_read_too_soon() -> None:
    assert what_is_told_after_power_loss() == [
        ("p", batch, n) for batch in (1, 2, 3) for n in (0, 1)
    ]


def test_without_settling_it_first_it_would_be_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LocalStore, "settle", lambda self, name: None)
    assert what_is_told_after_power_loss() == [("p", batch, n) for batch in (1, 2) for n in (0, 1)]
