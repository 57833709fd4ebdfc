"""Pins keep steps for readers, for a while; a clock that is off, or damage, keeps nothing for ever."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import PipelineError
from headrace.ledger.pins import FOLDER, LONGEST_US, PINS, SLACK_US, Pin, Pins
from headrace.storage import MemoryStore

NOW = 10**15


def test_the_lowest_pin_counts_until_it_is_dropped_or_has_expired() -> None:
    store = MemoryStore()
    pins = Pins(store)
    assert pins.lowest(NOW) is None
    pins.put(9, now_us=NOW, for_us=100, nonce="a")
    low = pins.put(7, now_us=NOW, for_us=200 * 10**6, nonce="b")
    assert pins.lowest(NOW) == 7
    pins.drop(low)
    assert pins.lowest(NOW + 50) == 9
    assert pins.lowest(NOW + 100 + SLACK_US) == 9
    assert pins.lowest(NOW + 101 + SLACK_US) is None
    assert store.list(FOLDER), "one that expires at one look is let be: the clock may be wrong"
    assert pins.lowest(NOW + 102 + SLACK_US) is None
    assert store.list(FOLDER) == [], "what has expired is deleted"


@given(st.integers(-(10**12), 10**12), st.integers(1, LONGEST_US))
def test_clocks_may_differ_by_the_slack(ahead: int, for_us: int) -> None:
    pin = Pin(3, NOW + ahead, NOW + ahead + for_us)
    if abs(ahead) <= SLACK_US:
        assert all(pin.holds(NOW + later) for later in (0, for_us // 2, for_us))
    if ahead > SLACK_US:
        assert not pin.holds(NOW)
    assert not pin.holds(NOW + for_us + 2 * SLACK_US + 1) or ahead > SLACK_US


@given(st.integers(-(2**62), 2**62), st.integers(-(2**62), 2**62), st.integers(-(2**62), 2**62))
def test_no_pin_is_for_longer_than_the_longest_whatever_it_says(
    made: int, until: int, now: int
) -> None:
    pin = Pin(3, made, until)
    if pin.holds(now):
        assert not pin.holds(now + LONGEST_US + 2 * SLACK_US + 1)


@pytest.mark.parametrize("for_us", [0, -5, LONGEST_US + 1])
def test_a_pin_that_would_be_nothing_or_last_for_ever_is_refused(for_us: int) -> None:
    with pytest.raises(PipelineError, match="cannot last"):
        Pins(MemoryStore()).put(1, now_us=NOW, for_us=for_us, nonce="a")


def test_a_damaged_pin_holds_nothing_and_what_is_none_of_ours_is_let_be() -> None:
    store = MemoryStore()
    pins = Pins(store)
    good = PINS.encode(Pin(4, NOW, NOW + 100))
    for position in range(len(good)):
        flipped = bytearray(good)
        flipped[position] ^= 1
        store.write(f"{FOLDER}{4:012d}-a{position}", bytes(flipped))
    store.create(f"{FOLDER}readme", b"what are these?")
    lowest = pins.lowest(NOW)
    left = [n for n in store.list(FOLDER) if n != f"{FOLDER}readme"]
    assert lowest is None and f"{FOLDER}readme" in store.list(FOLDER)
    assert all(store.read(name).startswith(b"headrace-pin ") for name in left), "of newer versions"
