"""How fast workers open state: assumed at first, and what was measured the more of that there is."""

from __future__ import annotations

import numpy as np

from headrace.migration.objective import ASSUMED_BIN_US, ASSUMED_BYTES_PER_S, OpeningRates
from headrace.protocol.loads import OpenedState

#: Assumptions weigh as much as having seen so long a time of opening, in microseconds.
_TRUST_US = 1_000.0
#: The measure of what opening takes however little is opened; that nothing is assumed of.
_FIXED_US = 2_000.0
#: What was seen counts so much after each further time.
_FADING = 0.98
#: The least and the most that the factors may be: nothing takes less than no time, and what is measured
#: differs from what is assumed by a thousand times, at most.
_LEAST = np.array([0.0, 1e-3, 1e-3])
_MOST = np.array([np.inf, 1e3, 1e3])
#: So many bins must have been opened before one may speak of measuring.
_LEAST_BINS = 8


class OpeningMeter:
    """Learns how fast workers open state.

    What it looks for are what opening takes however little is opened, and two factors, of the assumed time
    for bins and of that for bytes. They are those that fit best what was measured (least squares), with
    the assumption as one thing more to fit (ridge): where all bins that were opened are tiny, nothing is
    learnt of bytes, and these stay as assumed.

    Attributes:
        bins: how many were opened in all.
    """

    def __init__(self) -> None:
        self._matrix = np.zeros((3, 3))
        self._vector = np.zeros(3)
        self._rounds = np.zeros(2)  # how many, how long
        self.bins = 0

    def note(self, opened: OpenedState) -> None:
        """Note what one worker has opened in a step."""
        if opened.relaid_us:
            self._rounds = self._rounds * _FADING + np.array([1.0, opened.relaid_us])
        if not opened.bins or opened.took_us <= 0:
            return
        self.bins += opened.bins
        assumed = np.array(
            [_FIXED_US, opened.bins * ASSUMED_BIN_US, opened.nbytes * 1e6 / ASSUMED_BYTES_PER_S]
        )
        self._matrix = self._matrix * _FADING + np.outer(assumed, assumed)
        self._vector = self._vector * _FADING + assumed * opened.took_us

    @property
    def rates(self) -> OpeningRates:
        """How long it takes, by all that is known."""
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


def _solve(matrix: np.ndarray, vector: np.ndarray) -> np.ndarray:
    """Return the factors within their bounds that fit best.

    One that is out of bounds is set to its bound, the farthest first, and the others are looked for again:
    with what was too little or too much about it, they would not fit.
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
