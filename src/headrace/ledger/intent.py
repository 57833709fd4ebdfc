"""Intents: what a step will read, made durable before anybody sees its results.

A weak sink sees results before their step is committed. If the driver then crashes, the next one must
compute the very same results, or the sink would have seen what never was. So all that they depend on,
besides the committed state and the code, is written down first.

Intents are named by the step's *number of order*: the count of committed steps that computed something,
plus one. (Step numbers will not do: the claim of the next driver takes one.) All drivers that
may compute that step, the fenced ones too, contend for one name, and the first to create it decides.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from headrace.eventtime.watermark import Frontiers
from headrace.ledger.envelope import Sealed
from headrace.pipeline.source import Offer
from headrace.storage.bounds import Micros, StepNumber, Whole

FOLDER = "intents/"


class Intent(msgspec.Struct, frozen=True):
    """What a step will read, and when it says it is.

    The rest of the plan follows from it and from the committed state.

    Attributes:
        order: the step's number of order.
        step: the number that the step bore when it was planned; sinks know its results by it.
        nonce: tells the intent of one driver from that of another.
        clock_us: its clock reading.
        offers: what it takes, by injector; for injectors that have something.
        known: what it takes for granted of the injectors' partitions.
        replays: whether it is read again, for computations that are catching up.
        code: the fingerprint of the code that the step was begun with; empty where it is not known.
    """

    order: Whole
    step: StepNumber
    nonce: str
    clock_us: Micros
    offers: dict[str, Offer]
    known: dict[str, Frontiers]
    replays: bool = False
    code: str = ""

    def is_of_other_code(self, code: str) -> bool:
        """Say whether it was begun with other code than this: that may come to other rows.

        Fingerprints that were made in two ways say nothing of each other: then it is taken to be this
        code, as where none is known. The way is what a fingerprint begins with, up to ``:``.
        """
        is_known = bool(self.code and code) and _way_of(self.code) == _way_of(code)
        return is_known and self.code != code


def _way_of(code: str) -> str:
    return code.rpartition(":")[0]


INTENTS = Sealed("headrace-intent", Intent)
_INTENT = re.compile(rf"{FOLDER}(\d{{12,18}})")


def orders_of(names: Iterable[str]) -> list[int]:
    """Return the numbers of order of those names that are an intent's."""
    return [int(found[1]) for name in names if (found := _INTENT.fullmatch(name))]


def intent_name(order: int) -> str:
    """Return the one name of the intent of a step."""
    return f"{FOLDER}{order:012d}"
