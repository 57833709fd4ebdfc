"""The demo is killed without mercy and started again; the result is as if nothing had happened."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import pytest

from tests.support import flights, processes
from tests.support.outputs import all_steps
from tests.support.results import recording

DEMO = "examples/flights/demo.py"
ROWS = "1000"
#: So many departures are enough for these tests: fifty steps.
DEPARTURES = 50_000


@pytest.fixture(scope="session")
def stream(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The flights in the order of their landings, and what an undisturbed run makes of them."""
    data = tmp_path_factory.mktemp("flights")
    lines = flights.first_lines(data / "whole", DEPARTURES)
    (data / "departures.csv").write_text("".join(lines))
    run = processes.start(
        [DEMO, "--data", str(data), "--rows", ROWS, "--runner", "inline"], data / "log"
    )
    assert run.wait(timeout=600) == 0, (data / "log").read_text()
    return data


def killed_until_done(stream: Path, data: Path, kills: int, rng: random.Random) -> dict[str, int]:
    """Run the demo on Spark, killing it so many times; return who was killed how often."""
    data.mkdir()
    shutil.copy(stream / "departures.csv", data / "departures.csv")
    arguments = [DEMO, "--data", str(data), "--rows", ROWS]
    done: dict[str, int] = {}
    for _ in range(kills):
        exchange = rng.choice(["auto", "auto", "driver", "host", "shuffle"])
        run = processes.start([*arguments, "--exchange", exchange], data / "log")
        before = processes.steps_in(data / "state")
        if rng.random() < 0.8:  # most kills hit a run that is under way, some its start
            # the claim is one step; more than that is work
            enough = before + 1 + rng.randrange(1, 12)
            processes.wait_for(
                lambda to=enough: processes.steps_in(data / "state") >= to, process=run
            )
            processes.pause(rng.uniform(0.0, 0.3), run)
        else:
            processes.pause(rng.uniform(0.5, 4.0), run)
        if run.poll() is not None:
            break
        what = processes.kill_by_chance(run, rng)
        done[what] = done.get(what, 0) + 1
    last = processes.start(arguments, data / "log")
    assert last.wait(timeout=600) == 0, (data / "log").read_text()[-4000:]
    return done


def check(stream: Path, data: Path) -> None:
    expected, found = all_steps(stream / "out"), all_steps(data / "out")
    assert found.keys() == expected.keys()
    for sink, steps in expected.items():
        assert found[sink] == steps, f"sink {sink} differs"


@pytest.mark.spark
@pytest.mark.drawn(4, "whoever dies")
def test_a_few_kills_leave_no_trace_in_the_output(stream: Path, tmp_path: Path) -> None:
    seed = int(os.environ.get("HEADRACE_SEED", "20131"))
    print(f"seed {seed}")
    done = killed_until_done(stream, tmp_path / "killed", 2, random.Random(seed))
    assert sum(done.values()) == 2, f"the run ended before it could be killed: {done}"
    check(stream, tmp_path / "killed")


@pytest.mark.spark
@pytest.mark.soak
def test_a_hundred_kills_leave_no_trace_in_the_output(stream: Path, tmp_path: Path) -> None:
    seed = int(os.environ.get("HEADRACE_SEED", str(random.SystemRandom().randrange(2**31))))
    print(f"seed {seed}")
    rng, round_ = random.Random(seed), 0
    done: dict[str, int] = {}
    with recording("kills") as keep:
        while sum(done.values()) < 100:
            round_ += 1
            data = tmp_path / f"round-{round_}"
            for what, count in killed_until_done(stream, data, 10, rng).items():
                done[what] = done.get(what, 0) + count
            check(stream, data)
            shutil.rmtree(data)
            keep({"seed": seed, "rounds": round_, "killed": done})
        print(f"{done} in {round_} rounds")
