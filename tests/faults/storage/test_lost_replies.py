"""A create whose reply is lost may be sent again, and then meets itself: it must not pass for another's."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest

import headrace as hr
from headrace.driver.driver import Driver, Settings
from headrace.errors import AlreadyExists, StorageError
from headrace.ledger.commands import Command, CommandLog
from headrace.policies import How
from headrace.runners.inline import InlineRunner
from headrace.storage import MemoryStore, ObjectStore, Store
from tests.property.oracle.model import Model, NodeSpec, Spec
from tests.support import meddler
from tests.support.faults import FaultStore
from tests.support.inboxes import items, pipeline, producer, run_until_idle
from tests.support.pipelines import Collected, draw, run_inline
from tests.support.s3server import S3Server

SPEC = Spec(
    injectors={"first": [((i * 7) % 5, i % 3, i * 3 + (i * 31) % 20) for i in range(36)]},
    bound=20,
    rows=6,
    nodes=[
        NodeSpec("node0", [("first", "a")], delay=10, echo=True),
        NodeSpec("node1", [("node0", "b")], delay=5, echo=True),
    ],
)
UPKEEP = {"base_every": 2, "slices": 8, "retain_steps": 1}


class MeetingItself(MemoryStore):
    """Of every create, the reply to the first request is lost, and the second one meets the first."""

    def create(self, name: str, data: bytes) -> None:
        super().create(name, data)
        raise AlreadyExists(f"{name} exists", place=self.location)


def expected() -> dict[str, object]:
    model = Model(SPEC, hr.hash_key)
    model.run()
    return dict(model.outputs)


def ran(store: Store, *, weak: bool, **more: int) -> Collected:
    collected = Collected()
    drawn = draw(SPEC, collected, weak=weak)
    run_inline(drawn, store=store, rows=SPEC.rows, workers=2, **UPKEEP, **more)
    return collected


@pytest.mark.parametrize("weak", [False, True])
def test_a_pipeline_whose_every_create_meets_itself_does_not_notice(weak: bool) -> None:
    assert ran(MeetingItself(), weak=weak).rows() == expected()


@pytest.mark.parametrize("act", ["meets itself", "is unknown"])
def test_measurements_whose_reply_was_lost_are_taken_away_by_the_next_ones(act: str) -> None:
    store = MeetingItself() if act == "meets itself" else MemoryStore()
    written: list[str] = []

    class Noting(FaultStore):
        def create(self, name: str, data: bytes) -> None:
            if name.startswith("measurements/"):
                written.append(name)
            self.inner.create(name, data)
            if name.startswith("measurements/") and act == "is unknown" and len(written) % 2:
                raise StorageError("the reply was lost")

    driver = Driver(
        draw(SPEC, Collected()),
        Noting(store),
        InlineRunner(),
        workers=2,
        bins=16,
        drain=True,
        settings=Settings(limit=hr.Limit(SPEC.rows, 1 << 20)),
        how=How(every=timedelta(microseconds=1)),
    )
    driver.run()
    driver.close()
    assert len(written) > 4
    assert set(store.list("measurements/")) <= set(written[-2:]), "at most the newest are there"
    assert written[-1] in store.list("measurements/")


def test_a_command_that_met_itself_is_there_once() -> None:
    store = MeetingItself()
    log = CommandLog(store)
    commands = [Command("pause", nonce="a"), Command("resume", nonce="b")]
    assert [log.put(command, 0) for command in commands] == [0, 1]
    assert [asked.command for asked in log.pending(0)] == commands


def test_batches_that_met_themselves_are_read_once() -> None:
    inbox, collected = MeetingItself(), Collected()
    appends = producer(inbox, "a")
    assert [appends.append(items("a", batch, 3)) for batch in range(4)] == [0, 1, 2, 3]
    drawn = pipeline(inbox, collected.sink("told"), clean=True)
    run_until_idle(drawn, MeetingItself(), rows=4)
    rows = [row for _, step in collected.steps["told"] for row in step]
    assert len(rows) == 12
    assert appends.append(items("a", 4, 3)) == 4


def test_on_a_real_server_too(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every conditional put is applied and answered with 500; the library sends it again."""
    seen: set[str] = set()
    lock = threading.Lock()

    def plan(method: str, path: str, conditional: bool) -> str | None:
        with lock:
            first = conditional and path not in seen
            seen.add(path if conditional else "")
            return meddler.FAIL_AFTER if first else None

    with meddler.meddling(s3.port, plan) as port:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
        assert ran(ObjectStore(s3.location()), weak=True).rows() == expected()
    assert len(seen) > 10
