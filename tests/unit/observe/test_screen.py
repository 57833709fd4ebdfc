"""What is shown on a terminal."""

from __future__ import annotations

import io

from rich.console import Console

from headrace.ledger.manifest import Manifest
from headrace.ledger.timing import Timing
from headrace.observe.screen import render, show_live
from headrace.observe.top import View, view_of
from tests.unit.observe.test_top import SECOND, claim, step

TIMING = Timing(
    10 * SECOND,
    {"attempt": SECOND, "commit": SECOND, "plan": 1},
    {"state": (250_000, 500_000)},
    exchange="driver",
    soft_state={"hit": 2},
)


def shown(window: list[Manifest], width: int = 80) -> str:
    file = io.StringIO()
    Console(file=file, width=width).print(render(view_of(window, 60 * SECOND)))
    return file.getvalue()


def test_a_view_fits_a_narrow_terminal() -> None:
    text = shown([step(n, timing=TIMING) for n in (50, 57)])
    assert max(map(len, text.splitlines())) <= 80
    lines = [line.split() for line in text.splitlines()]
    assert ["p", "step", "57,", "epoch", "2,", "begun", "3.0", "s", "ago"] in lines
    assert ["state", "25.0%", "━━━━━╸", "500.00", "500.00"] in lines
    assert ["commit", "50.0%", "━━━━━━━━━━━╸", "1000.00"] in lines
    assert ["n", "10.0", "0.0", "0", "0", "30.0", "s", "1970-01-01T00:01:00Z"] in lines
    assert "plan" not in text, "what would show as nothing is left out"


def test_times_that_are_not_known_are_dashes_and_said() -> None:
    text = shown([step(57)])
    assert "- records/s  - steps/s  busy -" in text
    assert "1 of 1 steps do not say where their time went" in text


def test_a_pipeline_without_steps_is_shown() -> None:
    assert "p  step 0, epoch 2, begun -" in shown([claim(0)])


def test_live_shows_each_look_until_it_is_interrupted() -> None:
    file = io.StringIO()
    numbers = iter([1, 2, 3])
    looks: list[int] = []

    def look() -> View:
        looks.append(next(numbers))
        return view_of([step(looks[-1], timing=TIMING)], 0)

    def wait() -> None:
        if looks == [1, 2, 3]:
            raise KeyboardInterrupt

    console = Console(file=file, force_terminal=True, width=80, height=40)
    show_live(console, look, wait)
    assert all(f"step {number}, epoch 2" in file.getvalue() for number in (1, 2, 3))
    assert file.getvalue().endswith("\x1b[?1049l"), "the terminal has its screen back"
