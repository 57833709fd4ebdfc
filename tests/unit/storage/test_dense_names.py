"""What is left of dense names below a bound is found, however far a list lags behind."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.storage.dense import left_below


@given(
    st.integers(0, 60),
    st.integers(0, 60),
    st.sets(st.integers(0, 60)),
    st.sets(st.integers(0, 70)),
    st.sampled_from([0, 1]),
)
def test_all_that_lead_up_to_the_bound_are_found_and_ghosts_that_a_list_shows(
    first: int, end: int, ghosts: set[int], shown: set[int], least: int
) -> None:
    dense = set(range(max(first, least), end))
    there = dense | {one for one in ghosts if one < end}
    asked: list[int] = []

    def is_there(number: int) -> bool:
        asked.append(number)
        return number in there

    found = left_below(shown, end, is_there, least=least)
    assert found == sorted(set(found))
    assert dense <= set(found), "nothing stays below what is deleted"
    assert {one for one in shown & there if one >= least} <= set(found)
    assert all(least <= one < end for one in found)
    assert len(asked) <= len(there - shown) + 1


def test_a_ghost_far_below_does_not_make_all_that_came_since_be_looked_for() -> None:
    asked: list[int] = []
    found = left_below([5, 199_998, 199_999], 200_000, lambda n: bool(asked.append(n)))
    assert found == [5, 199_998, 199_999]
    assert asked == [199_997]
