"""Every operation of the storage fails, in every way, once; nothing is lost and nothing comes twice.

Of four stories of a pipeline (``scenarios.py``) an undisturbed run counts the operations; then each is made
to crash the process before or after it, to fail, to lose its reply, or to find the storage full from there
on. After that the pipeline is started again on what is there, and must come to what the oracle says.

The suite takes evenly spaced ones of these points, the soak all of them.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import time
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.faults.crashpoints.scenarios import STORIES, Fault, operations, strike
from tests.support.faults import ACTS
from tests.support.packing import PACKING, packing
from tests.support.results import recording

#: So many points of a story are tried in the suite, about; and so many pairs of them.
_SOME, _SOME_PAIRS = 30, 6
#: What a second fault strikes, early in recovery.
_SECOND = (1, 2, 3, 5, 8, 13, 21, 34)


def points(total: int) -> list[Fault]:
    return [(at, act) for at in range(1, total + 1) for act in ACTS]


def pairs(total: int) -> list[tuple[Fault, Fault]]:
    """Return crashes, and others in the recovery from them."""
    return [
        ((at, "crash after"), (again, "crash before"))
        for at in range(1, total + 1, 4)
        for again in _SECOND
    ]


def spread(count: int, among: int) -> range:
    """Return evenly spaced indexes, over all acts and all second faults alike."""
    stride = max(1, among // count)
    while any(stride % divisor == 0 for divisor in (2, len(ACTS))):
        stride += 1
    return range(0, among, stride)


@pytest.fixture(params=PACKING, autouse=True)
def how(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run each test with files that are packed into manifests, and with files of their own."""
    with packing(request.param):
        yield request.param


@pytest.mark.parametrize("name", STORIES)
@pytest.mark.drawn(3)
def test_a_fault_at_any_operation_leaves_no_trace(name: str, how: str) -> None:
    total = operations(name)
    assert total > (50 if how == "files" else 40)
    every = points(total)
    some = [every[at] for at in spread(_SOME, len(every))]
    assert {act for _, act in some} == set(ACTS)
    assert sum(strike(name, fault) for fault in some) == len(some) > _SOME // 2


@pytest.mark.parametrize("name", STORIES)
@pytest.mark.drawn(3)
def test_a_crash_in_recovery_leaves_no_trace_either(name: str) -> None:
    every = pairs(operations(name))
    some = [every[at] for at in spread(_SOME_PAIRS, len(every))]
    assert sum(strike(name, *faults) for faults in some) >= len(some) * 3 // 2


def _strike(case: tuple[str, str, tuple[Fault, ...]]) -> tuple[int, int, str]:
    """Strike one point, in a process of a pool; return how many faults, how many were reached, trouble."""
    logging.disable(logging.WARNING)
    name, how, faults = case
    try:
        with packing(how):
            return len(faults), strike(name, *faults), ""
    except AssertionError as error:
        return len(faults), 0, str(error)


@pytest.mark.soak
@pytest.mark.parametrize("name", STORIES)
def test_all_crash_points(name: str, how: str) -> None:
    begun, total = time.monotonic(), operations(name)
    singles = [(name, how, (fault,)) for fault in points(total)]
    doubles = [(name, how, faults) for faults in pairs(total)[::3]]
    with recording(f"crash_points_{name}" + ("" if how == "packed" else "_files")) as keep:
        struck, troubles = Counter[int](), []
        with multiprocessing.get_context("spawn").Pool(os.cpu_count()) as pool:
            for faults, reached, trouble in pool.imap_unordered(_strike, [*singles, *doubles], 8):
                struck[faults] += reached
                troubles += [trouble] if trouble else []
        figures = {
            "operations": total,
            "points": len(singles),
            "struck": struck[1],
            "share": struck[1] / len(singles),
            "crashes_in_recovery": len(doubles),
            "wrong": len(troubles),
            "seconds": round(time.monotonic() - begun),
        }
        print(name, figures)
        keep(figures)
        assert not troubles, "\n\n".join(troubles[:5])
        assert figures["share"] == 1.0
