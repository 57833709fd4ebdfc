"""The engine's computation that brings unreadable records to an injector's ``dead_letter`` stream.

It passes rows on and has no state. Since they are a computation's output, the rows are staged,
committed and delivered with the step.
"""

from __future__ import annotations

from typing import Any

from headrace.computation.computation import Computation
from headrace.computation.declarations import Output
from headrace.computation.records import Record
from headrace.pipeline.sifting import BadRecord
from headrace.pipeline.streams import DEAD_LETTER

#: The column by which the rows are keyed.
BY_PLACE = "place"


class Letters(Computation):
    """Passes on the records that a source could not read."""

    deterministic = True
    dead_letter = Output(BadRecord)

    def process_record(self, ctx: Any, record: Record) -> None:
        ctx.produce(DEAD_LETTER, record.value)
