"""Real processes that lead, stand by, are killed, paused and handed over to; the world sees each effect
once.

What it has seen is a file of lines with times of the clock that all processes of a host share; it knows
nothing of the package.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.fail_over import Scene
from tests.support.leading_driver import FENCED, LEASE


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    scene = Scene(tmp_path, 400)
    yield scene
    scene.bury()


def test_of_two_standbys_one_takes_over_from_a_killed_leader_and_the_other_from_that_one(
    scene: Scene,
) -> None:
    scene.start("first")
    for name in ("one", "other"):
        scene.start(name, "--standby")
    scene.has_made("first")
    for name in ("one", "other"):
        scene.stands_by(name)
    killed = time.monotonic()
    scene.kill("first")
    winner = scene.leader_of("one", "other")
    took = scene.made_by(winner)[0]["at"] - killed
    loser = "other" if winner == "one" else "one"
    print(
        f"kill -9 to the first effect of the standby: {took:.2f} s (patience {LEASE.patience_s} s)"
    )
    assert LEASE.patience_s / 2 < took, "nobody takes over from one who has just been seen"
    assert not scene.made_by(loser)
    scene.stands_by(loser)
    scene.kill(winner)
    scene.has_made(loser)
    scene.is_enough()
    assert scene.ends(loser) == 0, scene.log(loser)
    assert "ended: stopped" in scene.log(loser)
    assert scene.took_over(loser)["why"] == "gone"
    assert scene.head.epoch == 3, "each take-over is one claim"
    scene.check_exactly_once()


def test_a_leader_that_is_paused_for_longer_than_the_patience_is_fenced_when_it_wakes(
    scene: Scene,
) -> None:
    scene.start("first")
    scene.start("standby", "--standby")
    scene.has_made("first")
    scene.stands_by("standby")
    scene.freeze("first")
    scene.has_made("standby")
    before = len(scene.made_by("first"))
    scene.thaw("first")
    assert scene.ends("first") == FENCED, scene.log("first")
    assert "Fenced driver of epoch 1 is fenced" in scene.log("first")
    assert len(scene.made_by("first")) - before <= 1, "at most a delivery that it had begun"
    scene.is_enough()
    assert scene.ends("standby") == 0, scene.log("standby")
    assert scene.head.epoch == 2
    scene.check_exactly_once()


def test_a_standby_that_led_and_was_fenced_stands_by_again_and_can_lead_again(
    scene: Scene,
) -> None:
    scene.start("first", "--standby")
    scene.has_made("first")
    scene.start("second", "--standby")
    scene.stands_by("second")
    scene.freeze("first")
    scene.has_made("second")
    scene.thaw("first")
    scene.stands_by("first")
    assert "stands by again: driver of epoch 1 is fenced" in scene.log("first")
    scene.kill("second")
    scene.has_made("first", len(scene.made_by("first")) + 5)
    scene.is_enough()
    assert scene.ends("first") == 0, scene.log("first")
    assert scene.head.epoch == 3
    scene.check_exactly_once()


def test_under_load_new_code_takes_over_within_about_a_step(scene: Scene) -> None:
    scene.start("old", "--version", "old")
    scene.has_made("old", 50)
    scene.start("new", "--version", "new", "--handover")
    assert scene.ends("old") == 0, scene.log("old")
    assert "ended: handed over to" in scene.log("old")
    scene.has_made("new")
    scene.is_enough()
    assert scene.ends("new") == 0, scene.log("new")
    scene.check_exactly_once()
    old, new = scene.made_by("old"), scene.made_by("new")
    assert {row[3] for line in old for row in line["rows"]} == {"old"}
    assert {row[3] for line in new for row in line["rows"]} == {"new"}
    assert old[-1]["at"] < new[0]["at"]
    steps = sorted(after["at"] - at["at"] for at, after in zip(old[-40:], old[-39:], strict=False))
    told = scene.took_over("new")
    print(
        f"gap {new[0]['at'] - old[-1]['at']:.3f} s, steps every {steps[len(steps) // 2]:.3f} s; {told}"
    )
    assert told["why"] == "handed over"
    gap = new[0]["at"] - old[-1]["at"]
    assert abs(told["gap_s"] - gap) < max(1.0, gap), "it is what the world has seen"


def test_who_stands_by_ends_with_a_pipeline_that_is_stopped_on_purpose(scene: Scene) -> None:
    scene.start("leader")
    scene.start("standby", "--standby")
    scene.has_made("leader")
    scene.stands_by("standby")
    scene.is_enough()
    for name in ("leader", "standby"):
        assert scene.ends(name) == 0, scene.log(name)
        assert "ended: stopped" in scene.log(name)
    assert not scene.made_by("standby")
    assert scene.head.epoch == 1
    scene.check_exactly_once()
