"""Where added computations begin that work on rows: with those that their inputs hold now.

An operator on Z-sets needs all rows of its inputs, and not only those that change from now on. A table
or a view that keeps its rows can give them to a computation that is added later; see
:mod:`headrace.coordinator.seeding`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import msgspec

from headrace.errors import PipelineError
from headrace.ledger.retained import producer_of


class Beginning(msgspec.Struct, frozen=True):
    """What an added computation finds in its inputs.

    Attributes:
        name: the computation.
        rows: the streams with whose rows it can begin.
        without: streams that have been there before, and keep no rows.
    """

    name: str
    rows: list[str]
    without: list[str]

    def check(self) -> None:
        """Check that it begins with the rows of all its inputs.

        Raises:
            PipelineError: naming what keeps no rows.
        """
        if not self.without:
            return
        stream = self.without[0]
        raise PipelineError(
            f"{self.name!r} cannot begin with the rows of {stream!r}: nothing keeps them",
            remedy="a table with key=, op= or weight= keeps its rows, and so does a view(): let it read "
            f'one. Or say where it begins: begin={{"{self.name}": "beginning"}} reads again what came '
            'so far, from a source or from a table with retain=True, and "now" leaves it out',
        )


def beginnings(
    added: Collection[str],
    candidates: Collection[str],
    reads: Mapping[str, Collection[str]],
    tables: Collection[str],
    known: Collection[str],
) -> Iterator[Beginning]:
    """Yield what those of the added computations find that are to begin with rows.

    Args:
        added: the computations, in the order of the graph.
        candidates: those that are to begin with rows.
        reads: the streams that each computation reads.
        tables: the streams whose rows are kept.
        known: the injectors and computations that have been there before.
    """
    found: set[str] = set()
    for name in added:
        if name not in candidates:
            continue
        rows, without = [], []
        for stream in reads[name]:
            producer = producer_of(stream)
            if producer in added:
                rows += [stream] if producer in found else []
            elif stream in tables:
                rows.append(stream)
            elif producer in known:
                without.append(stream)
        if rows:
            found.add(name)
        yield Beginning(name, rows, without)


def not_yet(name: str, behind: Collection[str]) -> PipelineError:
    """Return the error for a computation that is to begin with rows before others have theirs."""
    return PipelineError(
        f"{name!r} cannot begin with the rows of its inputs while {', '.join(behind)} still catches up",
        remedy="wait until that has arrived (headrace status), and add it then",
    )


def nothing_to_begin_with(name: str) -> PipelineError:
    """Return the error for a computation that is to begin with rows, and reads none."""
    return PipelineError(
        f"{name!r} cannot begin with the rows of its inputs: none of them was there before",
        remedy="leave it out of begin=",
    )
