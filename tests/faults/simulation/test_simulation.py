"""The whole system in one process, while seeds let everything fail: nothing is lost, doubled or wrong."""

from __future__ import annotations

import pytest

from tests.faults.simulation.campaign import fingerprint_elsewhere
from tests.faults.simulation.run import simulate

#: The suite's part; ``python -m tests.faults.simulation.campaign`` runs as many as are wanted.
SEEDS = range(12)
#: One that is ten times as long.
LONG = 149


@pytest.mark.parametrize("seed", [*SEEDS, LONG])
def test_whatever_fails_the_world_sees_what_an_undisturbed_run_would_have_shown(seed: int) -> None:
    found = simulate(seed)
    assert not found.problem, "\n".join([f"seed {seed}", *found.story, found.problem])
    assert found.effects


@pytest.mark.parametrize("seed", [101, 102])
def test_a_seed_does_the_same_in_each_process(seed: int) -> None:
    """Else it would not say how to have a failure again."""
    assert simulate(seed).fingerprint == fingerprint_elsewhere(seed)
