"""How fast workers open state: assumed at first, and measured as steps report it."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from headrace.migration.costs import ASSUMED_BIN_US, ASSUMED_BYTES_PER_S, OpeningRates
from headrace.protocol.loads import OpenedState
from headrace.protocol.plan import TaskReport

#: The assumptions weigh as much as this much observed opening time, in microseconds.
_TRUST_US = 1_000.0
#: The unit of the fixed time of opening, in microseconds. Nothing is assumed of the fixed time.
_FIXED_US = 2_000.0
#: The factor by which an observation loses weight with each later one.
_DECAY = 0.98
#: The bounds of the factors. No time is negative, and measured rates differ from the assumed ones
#: at most a thousandfold.
_LEAST = np.array([0.0, 1e-3, 1e-3])
_MOST = np.array([np.inf, 1e3, 1e3])
#: How many bins must have been opened before rates count as measured.
_LEAST_BINS = 8


class OpeningMeter:
    """Learns how fast workers open state.

    Three numbers are estimated: a fixed time of opening, and factors of the assumed times for bins
    and for bytes. They are fitted by least squares. The assumptions take part as one more
    observation (ridge regression). So if all opened bins were tiny, nothing is learnt of bytes, and
    their factor stays as assumed.

    Attributes:
        bins: how many bins were opened in all.
    """

    def __init__(self) -> None:
        self._matrix = np.zeros((3, 3))
        self._vector = np.zeros(3)
        self._rounds = np.zeros(2)  # number and total time of layout changes that were followed
        self.bins = 0

    def note(self, opened: OpenedState) -> None:
        """Note what a worker has opened in a step."""
        if opened.relaid_us:
            self._rounds = self._rounds * _DECAY + np.array([1.0, opened.relaid_us])
        if not opened.bins or opened.took_us <= 0:
            return
        self.bins += opened.bins
        assumed = np.array(
            [_FIXED_US, opened.bins * ASSUMED_BIN_US, opened.nbytes * 1e6 / ASSUMED_BYTES_PER_S]
        )
        self._matrix = self._matrix * _DECAY + np.outer(assumed, assumed)
        self._vector = self._vector * _DECAY + assumed * opened.took_us

    @property
    def rates(self) -> OpeningRates:
        """The estimated rates."""
        trust = _TRUST_US**2
        prior = trust * np.array([0.0, 1.0, 1.0])
        factors = _solve(self._matrix + trust * np.eye(3), self._vector + prior)
        of_fixed, of_bins, of_bytes = factors.tolist()
        rounds, took = self._rounds.tolist()
        return OpeningRates(
            ASSUMED_BYTES_PER_S / of_bytes,
            ASSUMED_BIN_US * of_bins,
            _FIXED_US * of_fixed + (took / rounds if rounds else 0.0),
            self.bins >= _LEAST_BINS,
        )


def by_worker(tasks: Iterable[TaskReport]) -> list[OpenedState]:
    """Return what each worker has opened in a step, in all layers together.

    Layers follow one another, so their times add up. A bin counts once, however many computations
    have state of it.
    """
    found: dict[int, list[OpenedState]] = {}
    for task in tasks:
        if task.opened is not None:
            found.setdefault(task.worker, []).append(task.opened)
    return [
        OpenedState(
            -(-sum(of.bins for of in opened) // max(1, sum(of.states for of in opened))),
            sum(of.nbytes for of in opened),
            sum(of.took_us for of in opened),
            sum(of.relaid_us for of in opened),
        )
        for opened in found.values()
    ]


def _solve(matrix: np.ndarray, vector: np.ndarray) -> np.ndarray:
    """Return the factors that fit best within their bounds.

    The factor that is farthest out of bounds is set to its bound, and the others are fitted again,
    until all are within bounds. Clipping them all at once would leave the others fitted to values
    that are not used.
    """
    factors = np.zeros(len(vector))
    free = np.ones(len(vector), dtype=bool)
    while free.any():
        rest = vector - matrix[:, ~free] @ factors[~free]
        factors[free] = np.linalg.solve(matrix[np.ix_(free, free)], rest[free])
        bounded = np.clip(factors, _LEAST, _MOST)
        beyond = np.abs(factors - bounded)
        if not beyond.any():
            break
        farthest = np.argmax(beyond)
        factors[farthest] = bounded[farthest]
        free[farthest] = False
    return factors
