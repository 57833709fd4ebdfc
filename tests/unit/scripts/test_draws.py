"""Of the variants of a test that is marked ``drawn``, a run tries a few."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support import draws
from tests.support.draws import WAYS


class Item(SimpleNamespace):
    """A test, as pytest knows it, with the arguments of its mark."""

    def get_closest_marker(self, name: str) -> Any:
        return pytest.mark.drawn(*self.drawn).mark if self.drawn and name == "drawn" else None


TESTS: list[Any] = [
    *(Item(nodeid=f"a.py::test_one[{n}]", drawn=(3,)) for n in range(10)),
    *(Item(nodeid=f"a.py::test_other[{n}-x[0]]", drawn=(2,)) for n in range(3)),
    *(Item(nodeid=f"a.py::test_all[{n}]", drawn=()) for n in range(4)),
    Item(nodeid="b.py::test_one", drawn=(3,)),
    *(Item(nodeid=f"c.py::test_pooled_{n}", drawn=(2, "a name")) for n in range(6)),
]


def names(tests: list[pytest.Item]) -> list[str]:
    return [test.nodeid for test in tests]


def test_a_run_tries_as_many_as_the_mark_says_and_all_others() -> None:
    kept, left_out = draws.drawn(TESTS, 1)
    assert sorted(names(kept) + names(left_out)) == sorted(names(TESTS))
    by_function = [re.split(r"\[|_\d", name)[0] for name in names(kept)]
    counts = {name: by_function.count(name) for name in by_function}
    assert counts == {
        "a.py::test_one": 3,
        "a.py::test_other": 2,
        "a.py::test_all": 4,
        "b.py::test_one": 1,
        "c.py::test_pooled": 2,
    }
    assert names(kept) == [name for name in names(TESTS) if name in set(names(kept))]


def test_each_test_of_a_folder_is_tried_in_one_of_its_ways() -> None:
    tests: list[Any] = [
        Item(
            nodeid=f"d.py::test_x[{way}-{n}]",
            drawn=(),
            callspec=SimpleNamespace(params={WAYS[0]: way, "n": n}),
        )
        for way in ("by bin", "at once")
        for n in range(20)
    ]
    kept = [test.callspec.params for test in draws.drawn(tests, 3)[0]]
    assert sorted(params["n"] for params in kept) == list(range(20))
    assert {params[WAYS[0]] for params in kept} == {"by bin", "at once"}


def test_a_seed_draws_the_same_and_all_are_drawn_in_the_end() -> None:
    assert names(draws.drawn(TESTS, 7)[0]) == names(draws.drawn(TESTS, 7)[0])
    seen = {name for seed in range(100) for name in names(draws.drawn(TESTS, seed)[0])}
    assert seen == set(names(TESTS))


@pytest.mark.parametrize(
    ("args", "keyword", "profile", "expected"),
    [
        (["tests"], "", "short", True),
        (["tests"], "", "thorough", False),
        (["tests"], "nothing", "short", False),
        ([__file__], "", "short", False),
        (["tests", f"{__file__}::test_x[1]"], "", "short", False),
    ],
)
def test_all_variants_are_tried_where_tests_are_named_and_in_thorough_runs(
    args: list[str],
    keyword: str,
    profile: str,
    expected: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(draws, "profile", lambda: profile)
    config: Any = SimpleNamespace(args=args, option=SimpleNamespace(keyword=keyword))
    assert draws.draws(config) is expected
