"""Fail-over and handover on real Spark: each driver has a JVM and Python workers of its own."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.fail_over import Scene

pytestmark = pytest.mark.spark


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    scene = Scene(tmp_path, 200, "--spark")
    yield scene
    scene.bury()


@pytest.mark.drawn(4, "whoever dies")
def test_new_code_takes_over_under_load_and_a_standby_takes_over_when_that_is_killed(
    scene: Scene,
) -> None:
    """Three drivers, each with its session, so that nobody waits for one when it is needed."""
    scene.start("old", "--version", "old")
    scene.has_made("old", 1)
    scene.start("standby", "--version", "new", "--standby")
    scene.start("new", "--version", "new", "--handover")
    assert scene.ends("old") == 0, scene.log("old")
    assert "ended: handed over to" in scene.log("old")
    scene.has_made("new")
    old, new = scene.made_by("old"), scene.made_by("new")
    steps = sorted(after["at"] - at["at"] for at, after in zip(old[-40:], old[-39:], strict=False))
    gap = new[0]["at"] - old[-1]["at"]
    print(f"handover: gap {gap:.3f} s, steps every {steps[len(steps) // 2]:.3f} s before")
    assert gap > 0
    scene.stands_by("standby")
    killed = time.monotonic()
    scene.kill("new")
    scene.has_made("standby", 1)
    took = scene.made_by("standby")[0]["at"] - killed
    print(f"kill -9 of driver and JVM to the first effect of the standby: {took:.2f} s")
    scene.is_enough()
    assert scene.ends("standby") == 0, scene.log("standby")
    print(scene.took_over("standby"))
    versions = [
        {row[3] for line in scene.made_by(name) for row in line["rows"]}
        for name in ("old", "new", "standby")
    ]
    assert versions == [{"old"}, {"new"}, {"new"}]
    assert scene.head.epoch == 3
    scene.check_exactly_once()
