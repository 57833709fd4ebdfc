"""Commands from the page: the few of the command line's that are easy to take back.

They are the same numbered commands in storage. None of them deletes anything or ends a run.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from headrace.control.control import Control
from headrace.errors import PipelineError
from headrace.ledger.commands import Answer, Command
from headrace.ledger.migrations import Goal
from headrace.storage.base import Store
from headrace.storage.bounds import Whole, Workers

#: Who asks, as commands record it.
BY = "dashboard"
#: The longest request, in bytes.
MOST_BYTES = 1_024
#: Seconds to wait for an answer.
_WITHIN_S = 10.0
_MIGRATIONS = ("pause_migration", "resume_migration", "abort_migration", "hasten_migration")


class Wanted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the page asks for.

    Attributes:
        kind: the command.
        workers: ``rescale``: the number of workers.
        migration: the id of the migration, for commands about one.
    """

    kind: Literal[
        "pause",
        "resume",
        "rescale",
        "pause_migration",
        "resume_migration",
        "abort_migration",
        "hasten_migration",
    ]
    workers: Workers = 0
    migration: Whole = 0

    @property
    def command(self) -> Command:
        """The command to send.

        Raises:
            PipelineError: if it says too little.
        """
        if self.kind == "rescale":
            if not self.workers:
                raise PipelineError("a rescale needs a number of workers", remedy="give 1 or more")
            return Command("migrate", goal=Goal("rescale", self.workers), by=BY)
        if self.kind in _MIGRATIONS and not self.migration:
            raise PipelineError("which migration is not said", remedy="give its id")
        return Command(self.kind, migration=self.migration, by=BY)


class Outcome(msgspec.Struct, frozen=True):
    """What has become of a command.

    Attributes:
        number: its number in storage.
        answer: its answer; None if none has come yet.
        waits_for: why none has come, as far as that is known.
    """

    number: int
    answer: Answer | None
    waits_for: str


def wanted_of(body: bytes) -> Wanted:
    """Return what a request asks for.

    Raises:
        PipelineError: if it asks for something else.
    """
    try:
        return msgspec.json.decode(body, type=Wanted)
    except msgspec.DecodeError as error:
        raise PipelineError(
            f"that is not a command: {error}", remedy="use the command line for others"
        ) from None


def sent(store: Store, wanted: Wanted) -> Outcome:
    """Send a command, and wait for its answer.

    Raises:
        HeadraceError: if it cannot be sent.
    """
    control = Control(store)
    number = control.put(wanted.command)
    answer = control.wait(number, _WITHIN_S)
    return Outcome(number, answer, "" if answer else control.why_nobody_answers() or "")
