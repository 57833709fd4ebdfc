"""The examples of the gallery: their modules, and how they are driven through steps and crashes."""

from __future__ import annotations

import importlib
import random
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import headrace as hr
from headrace.testing.harness import CrashPoint, Harness

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "gallery"
PAGES = ROOT / "docs" / "gallery"
#: The examples, by the names of their files and pages.
NAMES = ("sessions", "fraud", "devices", "leaderboard", "billing", "anomalies")
#: Whether an example's input goes on after what is there, so that its last windows stay open.
GOES_ON = ("devices", "billing")
POINTS: tuple[CrashPoint, ...] = ("between_steps", "before_commit", "before_release")


def example(name: str) -> ModuleType:
    """Return a module of the gallery, such as ``billing`` or ``billing_data``."""
    if str(FOLDER) not in sys.path:
        sys.path.insert(0, str(FOLDER))
    return importlib.import_module(name)


def driven(
    name: str,
    inputs: dict[str, Sequence[Any]],
    *,
    rounds: int,
    seed: int,
    partition: Callable[[Any], str] = lambda item: "",
) -> Harness:
    """Drive an example's pipeline over its input, in steps and with crashes that a seed chooses.

    In one round nothing crashes; in many, something does in about half of them.
    """
    rng = random.Random(seed)
    t = hr.testing.drive(example(name).pipeline(), workers=3, seed=seed)
    cuts = [0.0, *sorted(rng.random() for _ in range(rounds - 1)), 1.0]
    crashes = 0
    for begin, end in zip(cuts, cuts[1:], strict=False):
        pushed = 0
        for injector, items in inputs.items():
            part = items[int(begin * len(items)) : int(end * len(items))]
            for key in dict.fromkeys(map(partition, part)):
                t.push_many(injector, [of for of in part if partition(of) == key], partition=key)
            pushed += len(part)
        if pushed and rng.random() < 0.5:
            t.crash(rng.choice(POINTS))
            crashes += 1
        t.run()
        t.clock(f"+{rng.randrange(3_000)}ms")
        t.run()
    if name not in GOES_ON:
        t.end()
        t.run()
    t.clock("+1h")
    t.run()
    assert crashes > rounds / 4 or rounds == 1
    return t


def values(t: Harness, sink: str) -> list[tuple[Any, int, Any]]:
    """Return what a sink has received, as (key, time in microseconds, value)."""
    return [(of.key, of.timestamp_us, of.value) for of in t.outputs(sink, everything=True)]
