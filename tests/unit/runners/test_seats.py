"""Which workers share a Python process."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from headrace.runners.spark.seats import seats_of

HOSTS = st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=40)
SLOTS = st.integers(1, 12)


@given(HOSTS, SLOTS)
def test_each_worker_has_one_seat_and_it_is_on_its_host(hosts: list[str], slots: int) -> None:
    seats = seats_of(hosts, slots)
    found = {worker: seat.host for seat in seats for worker in seat.workers}
    assert found == dict(enumerate(hosts))
    assert sum(len(seat.workers) for seat in seats) == len(hosts)
    assert [seat.name for seat in seats] == sorted({seat.name for seat in seats})


@given(HOSTS, SLOTS)
def test_a_host_has_as_many_seats_as_slots_and_none_without_a_worker(
    hosts: list[str], slots: int
) -> None:
    each = max(1, slots // len(set(hosts)))
    seats = Counter(seat.host for seat in seats_of(hosts, slots))
    assert seats == {host: min(each, n) for host, n in Counter(hosts).items()}


@given(HOSTS, SLOTS)
def test_seats_of_a_host_serve_equally_many_workers(hosts: list[str], slots: int) -> None:
    seats = seats_of(hosts, slots)
    for host in set(hosts):
        each = [len(seat.workers) for seat in seats if seat.host == host]
        assert max(each) - min(each) <= 1


@given(st.integers(1, 40), st.integers(0, 40), SLOTS)
def test_workers_keep_their_seats_when_others_are_added_or_leave(
    workers: int, more: int, slots: int
) -> None:
    few = {w: seat.name for seat in seats_of([None] * workers, slots) for w in seat.workers}
    many = {
        w: seat.name for seat in seats_of([None] * (workers + more), slots) for w in seat.workers
    }
    assert few.items() <= many.items()


@given(HOSTS)
def test_where_slots_are_not_settled_each_worker_has_a_seat_of_its_own(hosts: list[str]) -> None:
    assert [seat.workers for seat in seats_of(hosts, None)] == [(n,) for n in range(len(hosts))]
