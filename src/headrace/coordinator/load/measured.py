"""What was measured of a pipeline's load, as planning uses it."""

from __future__ import annotations

import math

import msgspec

from headrace.keyspace.groups import ALL_IN_ONE, Groups
from headrace.ledger.migrations import Latency
from headrace.migration.costs import (
    ASSUMED_BIN_US,
    ASSUMED_BYTES_PER_S,
    FILE_US,
    Costs,
    OpeningRates,
    RoundFactors,
    Scatter,
    Starting,
    StoreTimes,
    assumed_fixed_us,
    assumed_opening,
)
from headrace.migration.reading import (
    Files,
    RoundKind,
    ahead_calls,
    opened_ahead,
)


class Measured(msgspec.Struct, frozen=True):
    """What is known of a pipeline for planning its migrations.

    Attributes:
        sizes: bytes of state of each bin of the layout; None before they were measured.
        steps: how long steps take.
        scatter: how they scatter.
        bytes_per_s: how fast a worker opens state.
        bin_us, round_us: the fixed time for any bin, and for any round, in microseconds.
        opened: whether the three were measured; otherwise they are assumed.
        records, busy_us: the number of records of each bin in a step, and how long they take; None
            before enough was measured to know single bins.
        groups: the groups of the pipeline. Bins in no group weigh nothing, and texts name bins by
            group.
        store: how long the storage takes to answer.
        files: what a new owner opens.
        rounds: what earlier rounds have taught.
        starting: how new workers come.
        busy: the share of the time that steps take; None if it is not known.
        ahead_bytes: how many bytes a worker may read ahead in a step.
    """

    sizes: list[int] | None = None
    steps: Latency = Latency()
    bytes_per_s: float = ASSUMED_BYTES_PER_S
    bin_us: float = ASSUMED_BIN_US
    round_us: float = 0.0
    opened: bool = False
    records: list[float] | None = None
    busy_us: list[float] | None = None
    groups: Groups = ALL_IN_ONE
    scatter: Scatter = Scatter()
    store: StoreTimes = StoreTimes()
    files: Files = Files()
    rounds: RoundFactors = RoundFactors()
    starting: Starting = Starting()
    busy: float | None = None
    ahead_bytes: int = 2 << 20

    @property
    def opening(self) -> OpeningRates:
        """How long it takes to open state."""
        rate = self.bytes_per_s
        if not self.opened:  # what is assumed leaves out how far away the storage is
            rate = 1e6 / (1e6 / rate + self.store.byte_us)
        return OpeningRates(rate, self.bin_us, self.round_us, self.opened)

    def fixed_us(self, kind: RoundKind) -> float:
        """Return what any round of a kind costs, before what rounds have taught."""
        return assumed_fixed_us(kind, self.store, self.opening, self.files, self.starting.grow_us)

    def opening_us(self, kind: RoundKind, bins: int, nbytes: int) -> float:
        """Return how long a target opens some bins in a round of a kind, as far as is assumed."""
        rates = self.opening
        return assumed_opening(kind) * (bins * rates.bin_us + nbytes * 1e6 / rates.bytes_per_s)

    def expected_us(self, kind: RoundKind, bins: int, nbytes: int) -> float:
        """Return by how much a round of a kind makes its step longer."""
        factors = self.rounds.kind(kind)
        opening = self.opening_us(kind, bins, nbytes)
        return self.fixed_us(kind) * factors.fixed + opening * factors.opening

    def costs(self, *, prepare: bool, workers: int = 0, givers: int = 1) -> Costs:
        """Return what steps and rounds cost.

        Args:
            prepare: whether the new owners read ahead what moves.
            workers: the number of workers that there are to be.
            givers: from how many workers a new owner gets bins, at most.
        """
        known = self.files.times(givers)
        return msgspec.structs.replace(self, files=known)._costs(prepare=prepare, workers=workers)

    def _costs(self, *, prepare: bool, workers: int) -> Costs:
        kind: RoundKind = "prepared" if prepare else "later"
        factors, rates = self.rounds.kind(kind), self.opening
        share = assumed_opening(kind) * factors.opening
        round_us = self.fixed_us(kind) * factors.fixed
        first = self.rounds.kind("first").fixed * self.fixed_us("first")
        return Costs(
            step_us=self.steps.p50_us,
            bytes_per_s=rates.bytes_per_s / share,
            bin_us=rates.bin_us * share,
            round_us=round_us,
            busy=0.5 if self.busy is None else self.busy,
            measured=self.opened,
            first_us=0.0 if prepare else max(0.0, first - round_us),
            grow_us=self.fixed_us("grow") * self.rounds.kind("grow").fixed,
            shrink_us=self.fixed_us("shrink") * self.rounds.kind("shrink").fixed,
            high_us=self.scatter.high_us,
            usual_us=self._usual_us,
            excess_us=factors.excess_us,
            gap_steps=self.rounds.gap_steps or self._least_gap,
            start_us=self.starting.start_us(workers),
            ahead_us=self._ahead_us * self.rounds.ahead if prepare else 0.0,
            least_ahead_us=self._least_ahead_us * self.rounds.ahead if prepare else 0.0,
            prepared=prepare,
        )

    @property
    def _usual_us(self) -> float:
        """The longest of as many steps again as are known, in which nothing moves.

        The longest that was seen may have been an exception. Nine of ten are shorter than another.
        """
        high = self.scatter.high_us or self.steps.p99_us
        return math.sqrt(high * self.steps.p99_us)

    @property
    def _least_gap(self) -> float:
        """How many steps it takes until one of them shows that nothing is left of a round.

        The first one has more to do than others, since input has come meanwhile. One in some is
        slow for other reasons. Three that are alike end a gap, too.
        """
        return min(3.0, 1 + 1 / max(1e-3, 1 - self.scatter.slow))

    @property
    def _ahead_us(self) -> float:
        """How long it takes to read a byte of rows ahead."""
        nbytes = self.ahead_bytes * 1e6 / self.opening.bytes_per_s
        work = max(nbytes, opened_ahead(self.ahead_bytes) * FILE_US)
        return self._turn_us(work) / max(1, self.ahead_bytes)

    @property
    def _least_ahead_us(self) -> float:
        """How long reading ahead takes, however little: files are opened, and the end is seen."""
        files = opened_ahead(self.ahead_bytes)
        turns = self.files.first / files
        # (these turns read files, and hardly any rows)
        nbytes = self.files.nbytes / max(1.0, turns)
        work = files * FILE_US + nbytes * self.store.byte_us
        return 3 * self.steps.p50_us + turns * self._turn_us(work)

    def _turn_us(self, work_us: float) -> float:
        """Return how long a turn of reading ahead takes, in which each layer works for some time.

        A step starts it, and a later one sees its end.
        """
        calls = ahead_calls(self.ahead_bytes, self.files.layers) * self.store.call_us
        step = max(1.0, self.steps.p50_us)
        return step * -(-(calls + self.files.layers * work_us) // step)
