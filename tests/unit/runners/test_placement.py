"""Workers live evenly on the hosts that there are, and move no more than they must."""

from __future__ import annotations

from collections import Counter
from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from headrace.runners.spark.placement import placed, roomiest

HOSTS = ["a", "b", "c", "d"]
homes_of = st.lists(st.sampled_from([*HOSTS, None]), max_size=5)
free_hosts = st.lists(st.sampled_from(HOSTS), min_size=1, max_size=3, unique=True)


def is_even(preferred_hosts: list[str | None], free: list[str]) -> bool:
    lives = Counter(preferred_hosts)
    counts = [lives[host] for host in free]
    return sum(counts) == len(preferred_hosts) and max(counts) - min(counts) < 2


def moves(before: list[str | None], after: list[str | None]) -> int:
    return sum(one != other for one, other in zip(before, after, strict=True))


@given(preferred_hosts=homes_of, free=free_hosts)
def test_all_live_on_free_hosts_evenly_and_no_fewer_moves_would_do(
    preferred_hosts: list[str | None], free: list[str]
) -> None:
    found = placed(preferred_hosts, free)
    assert is_even(found, free)
    least = min(
        moves(preferred_hosts, list(other))
        for other in product(free, repeat=len(preferred_hosts))
        if is_even(list(other), free)
    )
    assert moves(preferred_hosts, found) == least


@given(preferred_hosts=homes_of, free=free_hosts)
def test_who_is_placed_stays_when_placed_again(
    preferred_hosts: list[str | None], free: list[str]
) -> None:
    once = placed(preferred_hosts, free)
    assert placed(once, free) == once


@given(preferred_hosts=homes_of)
def test_where_no_host_is_free_all_stay(preferred_hosts: list[str | None]) -> None:
    assert placed(preferred_hosts, []) == preferred_hosts
    assert roomiest(preferred_hosts, []) is None


@given(preferred_hosts=homes_of, free=free_hosts)
def test_a_newcomer_goes_where_nobody_has_fewer(
    preferred_hosts: list[str | None], free: list[str]
) -> None:
    lives = Counter(preferred_hosts)
    host = roomiest(preferred_hosts, free)
    assert host in free
    assert all(lives[host] <= lives[other] for other in free)
