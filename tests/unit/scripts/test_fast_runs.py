"""Runs that are not thorough try few examples, whatever a test asks for. A fast one starts no process."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from tests.support import examples, fast


@pytest.fixture(params=["fast", "short", "thorough"])
def profile(request: pytest.FixtureRequest) -> Iterator[str]:
    before = examples.profile()
    settings.load_profile(request.param)
    yield request.param
    settings.load_profile(before)


class Item(SimpleNamespace):
    """A test, as pytest knows it."""

    soak = False

    def get_closest_marker(self, name: str) -> Any:
        return self.soak if name == "soak" else None


def tried_by_a_property(asked: int, **item: Any) -> int:
    tried = []

    @settings(max_examples=asked, database=None)
    @given(st.integers())
    def for_any_number(number: int) -> None:
        tried.append(number)

    tests: list[Any] = [Item(obj=for_any_number, **item)]
    examples.limit(tests)
    for_any_number()
    return len(tried)


def test_a_property_tries_few_examples_though_it_asks_for_many(profile: str) -> None:
    most = examples.MOST.get(profile, 200)
    assert 0.8 * most <= tried_by_a_property(200) <= most


def test_a_property_that_asks_for_fewer_keeps_its_own(profile: str) -> None:
    assert tried_by_a_property(2) <= 2


def test_a_property_of_the_soak_tests_keeps_its_own(profile: str) -> None:
    assert 160 <= tried_by_a_property(200, soak=True) <= 200


def test_a_state_machine_has_fewer_runs_with_fewer_steps(profile: str) -> None:
    class Counting(RuleBasedStateMachine):
        @rule()
        def go_on(self) -> None:
            pass

    class Case(Counting.TestCase):  # type: ignore[name-defined, misc]
        settings = settings(max_examples=500, stateful_step_count=50)

    tests: list[Any] = [Item(cls=Case, obj=Case("runTest").runTest)]
    examples.limit(tests)
    assert Case.settings.max_examples == examples.MOST_RUNS.get(profile, 500)
    assert Case.settings.stateful_step_count == examples.MOST_STEPS.get(profile, 50)


def test_what_starts_a_process_is_skipped_and_nothing_else() -> None:
    with fast.no_other_process():
        with pytest.raises(pytest.skip.Exception, match="starts another process"):
            subprocess.run([sys.executable, "-c", ""], check=True)
        with pytest.raises(pytest.skip.Exception, match="starts another process"):
            multiprocessing.get_context("spawn").Process(target=print).start()
    subprocess.run([sys.executable, "-c", ""], check=True)
