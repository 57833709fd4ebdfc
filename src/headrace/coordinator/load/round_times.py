"""By how much rounds made their steps longer, and what that says of rounds to come.

What a round is expected to cost has two parts: one for any round, and one for the bins that are opened
in it. For each kind of round, a factor for each part is fitted to what rounds took, by least squares.
The newest rounds count most. The expectation itself takes part as one more, weaker observation.
"""

from __future__ import annotations

from collections import deque

import numpy as np
import numpy.typing as npt

from headrace.migration.costs import Factors, RoundFactors
from headrace.migration.reading import RoundKind

F64 = npt.NDArray[np.float64]

#: The factor by which a round loses weight with each later one of its kind.
_DECAY = 0.8
#: The expectation weighs as much as this many rounds.
_TRUST = 0.1
#: How many of the newest rounds say by how much a round may take longer than expected.
_NEWEST = 5
#: The bounds of the factors.
_LEAST = np.array([0.01, 0.02])
_MOST = np.array([1_000.0, 10.0])


class _Fit:
    """The factors of one kind of round."""

    def __init__(self) -> None:
        self._squares = np.zeros((2, 2))
        self._products = np.zeros(2)
        self._weight = 0.0
        self._excess: deque[float] = deque(maxlen=_NEWEST)
        self.rounds = 0

    def note(self, expected: F64, took_us: float) -> None:
        self._squares = self._squares * _DECAY + np.outer(expected, expected)
        self._products = self._products * _DECAY + expected * took_us
        self._weight = self._weight * _DECAY + 1.0
        self.rounds += 1
        self._excess.append(took_us - float(expected @ self._found))

    @property
    def factors(self) -> Factors:
        if not self.rounds:
            return Factors()
        fixed, opening = self._found.tolist()
        return Factors(fixed, opening, self.rounds, max(0.0, *self._excess))

    @property
    def _found(self) -> F64:
        # (a part that no round had stays as expected)
        mean = np.sqrt(np.diag(self._squares) / self._weight)
        # (in proportion to the parts, so that what cannot be told apart is divided by size)
        trust = np.maximum(_TRUST * mean * mean.sum(), 1.0)
        matrix = self._squares + np.diag(trust)
        found = np.linalg.solve(matrix, self._products + trust)
        for at in (0, 1):  # (what is out of bounds is set to its bound, and the other fitted again)
            bound = float(np.clip(found[at], _LEAST[at], _MOST[at]))
            if bound != found[at]:
                other = 1 - at
                rest = self._products[other] + trust[other] - matrix[other, at] * bound
                found[at], found[other] = bound, rest / matrix[other, other]
        factors: F64 = np.clip(found, _LEAST, _MOST)
        return factors


class RoundMeter:
    """Learns from what rounds, gaps and reading ahead took."""

    def __init__(self) -> None:
        self._fits: dict[RoundKind, _Fit] = {}
        self._gaps = np.zeros(2)  # number of gaps, and their steps
        self._ahead = np.zeros(2)  # expected and real times of reading ahead

    def note(self, kind: RoundKind, fixed_us: float, opening_us: float, longer_us: float) -> None:
        """Note a round.

        Args:
            kind: its kind.
            fixed_us, opening_us: the two parts of what it was expected to cost, without factors.
            longer_us: by how much its step was longer.
        """
        expected = np.array([fixed_us, opening_us])
        self._fits.setdefault(kind, _Fit()).note(expected, max(0.0, longer_us))

    def note_gap(self, steps: int) -> None:
        """Note how many steps a gap took."""
        self._gaps = self._gaps * _DECAY + np.array([1.0, steps])

    def note_ahead(self, expected_us: float, took_us: float) -> None:
        """Note how long it took until all was read ahead."""
        if expected_us > 0:
            self._ahead = self._ahead * _DECAY + np.array([expected_us, max(0.0, took_us)])

    @property
    def factors(self) -> RoundFactors:
        """What is known."""
        gaps, steps = self._gaps.tolist()
        expected, took = self._ahead.tolist()
        return RoundFactors(
            {kind: fit.factors for kind, fit in self._fits.items()},
            steps / gaps if gaps else 0.0,
            min(50.0, max(0.02, took / expected)) if expected else 1.0,
        )
