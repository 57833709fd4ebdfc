"""Pipelines on storage that is far away: killed and resumed, overtaken, and looked at from outside."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import headrace as hr
from headrace.cli.common import NOTHING_THERE
from headrace.storage import open_store
from tests.faults.interleavings.test_ledger import paused_at
from tests.faults.kills.test_kills_at_system_calls import RECORDS, effects, expected
from tests.property.oracle.model import Model, NodeSpec, Spec
from tests.support import processes
from tests.support.ledger_drivers import Driver, run, split_brain
from tests.support.pipelines import Collected, draw, run_inline, run_until_read
from tests.support.s3server import S3Server


def spec(rows: int) -> Spec:
    """Return two computations, one after the other, that read so many records a step."""
    return Spec(
        injectors={"first": [((i * 7) % 5, i % 3, i * 3 + (i * 31) % 20) for i in range(40)]},
        bound=20,
        rows=rows,
        nodes=[
            NodeSpec("node0", [("first", "a")], delay=10, echo=True),
            NodeSpec("node1", [("node0", "b")], delay=5, echo=True),
        ],
    )


UPKEEP = {"base_every": 2, "slices": 8, "retain_steps": 1}


@pytest.mark.parametrize(
    ("where", "rows", "weak"), [("s3", 9, False), ("s3", 9, True), ("hdfs", 20, False)]
)
def test_a_pipeline_stops_and_goes_on_with_other_workers(
    request: pytest.FixtureRequest, where: str, rows: int, weak: bool
) -> None:
    location, drawn = request.getfixturevalue(where).location(), spec(rows)
    model = Model(drawn, hr.hash_key)
    model.run()
    collected, store = Collected(), open_store(location)
    run_until_read(draw(drawn, collected, weak=weak), store, 20, rows=rows, **UPKEEP)
    again = draw(drawn, collected, weak=weak)
    run_inline(again, store=store, rows=rows, workers=3, **UPKEEP)
    assert collected.rows() == dict(model.outputs)
    assert store.list("probes/") == []


def test_a_driver_that_is_killed_again_and_again_loses_nothing(
    s3: S3Server, tmp_path: Path
) -> None:
    location = s3.location()
    script = str(processes.ROOT / "tests/faults/kills/killed_driver.py")
    told, rng = tmp_path / "effects", random.Random(7)
    told.touch()

    def start() -> subprocess.Popen[bytes]:
        return processes.start([script, location, str(told), str(RECORDS)], tmp_path / "log")

    killed = 0
    for _ in range(2):
        running = start()
        enough = told.stat().st_size + rng.randrange(1, 300)
        if processes.wait_for(lambda enough=enough: told.stat().st_size >= enough, process=running):
            running.send_signal(signal.SIGKILL)
            killed += 1
        running.wait(timeout=60)
    assert killed == 2
    assert start().wait(timeout=60) == 0, (tmp_path / "log").read_text()
    assert effects(told) == expected()


def test_a_driver_that_was_paused_anywhere_is_fenced(s3: S3Server) -> None:
    for stop_after in range(14):
        drivers, story = paused_at(stop_after, check=True, store=open_store(s3.location()))
        assert split_brain(drivers) is None, story
        assert drivers[1].error is None, story
        if not drivers[0].done or drivers[0].error:
            assert type(drivers[0].error).__name__ == "Fenced", story


def test_without_the_check_of_the_predecessor_one_of_them_is_told_committed(s3: S3Server) -> None:
    """The negative control: the server, too, creates again a name that was deleted."""
    found = [
        split_brain(paused_at(stop, check=False, store=open_store(s3.location()))[0])
        for stop in range(14)
    ]
    assert any(found), "the protection protects from nothing"


@pytest.mark.parametrize(("where", "seed"), [*(("s3", n) for n in range(5)), ("hdfs", 5)])
def test_random_schedules_of_three_drivers_never_split_a_step(
    request: pytest.FixtureRequest, where: str, seed: int
) -> None:
    location = request.getfixturevalue(where).location()
    rng = random.Random(seed)
    drivers = [Driver(name, rng.randint(2, 5), check_predecessor=True) for name in "abc"]

    def schedule():  # type: ignore[no-untyped-def]
        while True:
            yield from [rng.randrange(3)] * rng.choice([1, 1, 2, 5, 20])

    story = run(drivers, schedule(), open_store(location))
    assert split_brain(drivers) is None, story


def test_the_command_line_looks_at_it_from_outside(s3: S3Server) -> None:
    location = s3.location()

    def ask() -> subprocess.CompletedProcess[str]:
        asked = [sys.executable, "-m", "headrace.cli", "watermark", "bins", "node0"]
        return subprocess.run(
            [*asked, "--storage", location], capture_output=True, text=True, timeout=60, check=False
        )

    nothing = ask()
    assert nothing.returncode == NOTHING_THERE, nothing.stderr
    run_inline(draw(spec(20), Collected()), store=open_store(location), rows=20, workers=2)
    done = ask()
    assert done.returncode == 0, done.stderr
    assert "node0 has no work pending" in done.stdout
