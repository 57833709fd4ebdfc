"""Which variants of a test a run of the suite tries: of those that are marked ``drawn``, a few by chance.

Some properties are tried in many variants of which each takes long: on each kind of store, with each
exchange, at each number of workers. ``@pytest.mark.drawn(3)`` has a run draw three of them. Other runs draw
others, and ``make soak`` tries all. So does whoever names the test or its file. Of tests that try the same
by different means, ``drawn(3, "name")`` has it draw three of all that bear the name. Where all tests of a
folder are tried in each of some ways (:data:`WAYS`), each test is tried in one.
"""

from __future__ import annotations

import os
import random
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.examples import MOST, profile

#: Fixtures whose parameters are ways in which all tests of a folder are tried.
WAYS = ("how_state_is_loaded",)
#: Set it to the seed of another run, to have the same variants; or to ``all``, to have each.
SEED = "HEADRACE_DRAW"


def seed() -> int:
    return int(os.environ.setdefault(SEED, str(random.SystemRandom().randrange(2**31))))


def draws(config: pytest.Config) -> bool:
    """Return whether this run draws: not if it is thorough, or if tests or files are named."""
    named = config.option.keyword or any(not Path(arg).is_dir() for arg in config.args)
    return profile() in MOST and not named and os.environ.get(SEED) != "all"


def drawn(items: Sequence[pytest.Item], seed: int) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """Return the tests that are run, and the variants that are left out."""
    variants = defaultdict(list)
    for item in items:
        marker = item.get_closest_marker("drawn")
        if marker is not None and not item.get_closest_marker("soak"):
            count, name = (*marker.args, item.nodeid.partition("[")[0])[:2]
            variants[name, count].append(item)
        elif way := _way(item):
            variants[way, 1].append(item)
    left_out = set()
    for (name, count), of in variants.items():
        kept = random.Random(f"{seed} {name}").sample(of, min(len(of), count))
        left_out |= {item.nodeid for item in of} - {item.nodeid for item in kept}
    return (
        [item for item in items if item.nodeid not in left_out],
        [item for item in items if item.nodeid in left_out],
    )


def _way(item: pytest.Item) -> str:
    """Return what the variants of a test have in common that differ in their way; empty for no such."""
    variant = getattr(item, "callspec", None)
    if variant is None or not any(way in variant.params for way in WAYS):
        return ""
    others = [(name, id(of)) for name, of in sorted(variant.params.items()) if name not in WAYS]
    return f"{item.nodeid.partition('[')[0]} {others}"
