"""Intents: what a step will read, made durable before its results are shown to a sink.

A weak sink sees results before their step is committed. If the driver then crashes, its successor
must compute exactly the same results. Otherwise the sink would have seen results that never
existed. So everything that they depend on, besides the committed state and the code, is written
down first.

An intent is named by its step's *number of order*: how many committed steps have computed
something, plus one. A step number would not do, because the claim of the next driver takes it. All
drivers that may compute the step, fenced ones too, compete for one name, and the first create
decides.
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
    """What a step will read, and its clock reading.

    The rest of the plan follows from the intent and the committed state.

    Attributes:
        order: the step's number of order.
        step: the step's number when it was planned. Sinks know its results by this number.
        nonce: distinguishes the intent of one driver from that of another.
        clock_us: the step's clock reading.
        offers: the input of the step, for each injector that has something to read.
        known: what the step assumes of the injectors' partitions.
        is_backfill: whether the step reads earlier input again, for a backfill.
        code: fingerprint of the code that started the step; empty if unknown.
    """

    order: Whole
    step: StepNumber
    nonce: str
    clock_us: Micros
    offers: dict[str, Offer]
    known: dict[str, Frontiers]
    is_backfill: bool = msgspec.field(default=False, name="replays")
    code: str = ""

    def is_of_other_code(self, code: str) -> bool:
        """Return whether other code started the step. Other code may compute other rows.

        Two fingerprints can be compared only if they were made in the same way. The way is the part
        of a fingerprint before its last ``:``. If the ways differ, or a fingerprint is missing, the
        code is assumed to be the same.
        """
        is_known = bool(self.code and code) and _way_of(self.code) == _way_of(code)
        return is_known and self.code != code


def _way_of(code: str) -> str:
    return code.rpartition(":")[0]


INTENTS = Sealed("headrace-intent", Intent)
_INTENT = re.compile(rf"{FOLDER}(\d{{12,18}})")


def orders_of(names: Iterable[str]) -> list[int]:
    """Return the numbers of order of those names that are names of intents."""
    return [int(found[1]) for name in names if (found := _INTENT.fullmatch(name))]


def intent_name(order: int) -> str:
    """Return the name of the intent of a step."""
    return f"{FOLDER}{order:012d}"
