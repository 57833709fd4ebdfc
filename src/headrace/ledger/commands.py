"""Commands: requests to a running pipeline, stored in its storage.

A command is a file, created by any process that can write to the storage. Commands are numbered
without gaps, created if absent, and never deleted, so no number is used twice. The driver applies
them in the order of their numbers, between steps. Its manifests record how many it has answered,
and each answer. So a command is applied once, whatever crashes. Commands are plain data: no code
ever comes through storage.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from headrace.errors import (
    NOT_DECODED,
    AlreadyExists,
    Damaged,
    HeadraceError,
    NotFound,
    StorageError,
)
from headrace.keyspace.updates import Update
from headrace.ledger.envelope import Sealed, read_document
from headrace.ledger.migrations import Goal
from headrace.storage.base import Store
from headrace.storage.bounds import Micros, StepNumber, Whole, WorkerNumber

Kind = Literal[
    "change",
    "remove",
    "restore",
    "stop",
    "drain",
    "catch_up",
    "pause",
    "resume",
    "migrate",
    "update",
    "withdraw_update",
    "undrain_workers",
    "assign_partitions",
    "pause_migration",
    "resume_migration",
    "abort_migration",
    "hasten_migration",
    "drain_hosts",
    "undrain_hosts",
    "hand_over",
    "step_aside",
]
#: The kinds of command that move state or control how it moves.
MOVING: frozenset[Kind] = frozenset(
    {
        "migrate",
        "update",
        "withdraw_update",
        "undrain_workers",
        "assign_partitions",
        "pause_migration",
        "resume_migration",
        "abort_migration",
        "hasten_migration",
    }
)

FORMAT = 1
_SEALED = "headrace-command"
#: How often a create with an unknown outcome is attempted before it fails.
_ATTEMPTS = 5


class Command(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A request to a pipeline.

    Attributes:
        kind: what is requested.
        names: the computations that it concerns. ``change``: those whose state is given up.
        sinks: sinks to remove together with them.
        forget: whether the state of removed computations is given up.
        goal: ``migrate``: what the migration is to reach.
        if_busy: ``migrate``: what to do while another migration is under way.
        update: ``update``: a configuration update for exactly the step that it names.
        migration: the id of the migration to pause, resume, abort or hasten.
        hosts: the hosts to drain, or to drain no longer.
        workers: ``undrain_workers``: the workers.
        partitions: ``assign_partitions``: by partition of the injector in ``names``, the worker that
            reads it; -1 for none in particular.
        code: ``change``: the digest of the file of the new code. The driver reads the file that it
            was started with; no code and no name of a file comes through storage.
        begin: ``change``: where added computations begin.
        at_step: ``stop``, ``pause``: the step after which it takes effect; 0 for the running one.
            ``withdraw_update``: the step at which the update would take effect.
        now: ``stop``: whether the running step is discarded instead of finished.
        to: ``hand_over``, ``step_aside``: the token of the process that takes over.
        by: who asks, and why, for commands that record it.
        nonce: distinguishes this command from any other when a reply was lost.
        format: version of the format of this file.
    """

    kind: Kind
    names: list[str] = []
    sinks: list[str] = []
    forget: bool = False
    goal: Goal | None = None
    if_busy: Literal["queue", "refuse"] = "queue"
    update: Update | None = None
    migration: Whole = 0
    hosts: list[str] = []
    workers: list[WorkerNumber] = []
    partitions: dict[str, WorkerNumber] = {}
    code: str = ""
    begin: dict[str, str] = {}
    at_step: StepNumber = 0
    now: bool = False
    to: str = ""
    by: str = ""
    nonce: str = ""
    format: Whole = FORMAT

    @property
    def text(self) -> str:
        """The command in words."""
        if self.goal is not None:
            return str(self.goal)
        if self.update is not None:
            return f"update of step {self.update.step}"
        if self.kind == "withdraw_update":
            return f"withdraw the update of step {self.at_step}"
        number = [str(self.migration)] if self.migration else []
        at = [f"at step {self.at_step}"] if self.at_step else []
        now = ["now"] if self.now else []
        workers = map(str, self.workers)
        kind = self.kind.replace("_", " ")
        return " ".join([kind, *self.names, *self.hosts, *workers, *number, *at, *now])


class CommandRequest(msgspec.Struct, frozen=True):
    """A command as found in storage: its number, and its content or why it cannot be read."""

    number: int
    command: Command | None
    problem: str = ""


class Answer(msgspec.Struct, frozen=True):
    """The outcome of a command, part of the manifest that answers it.

    Attributes:
        number: number of the command.
        text: the command in words.
        applied: whether it was applied.
        step: the first step with its effect; or the step before which it was refused.
        why: why it was refused, or a remark.
        migration: id of the migration that it concerns; 0 for none.
        by: who asked; empty if that is not known.
        clock_us: the clock reading of the manifest that answers it; 0 in that manifest itself, and
            if an older version added it up.
    """

    number: Whole
    text: str
    applied: bool
    step: StepNumber
    why: str = ""
    migration: Whole = 0
    by: str = ""
    clock_us: Micros = 0


COMMANDS = Sealed(_SEALED, Command)
_unsealed = msgspec.json.Decoder(Command)


def _decoded(data: bytes, name: str) -> Command:
    """Return a stored command. Older versions stored commands without a seal."""
    sealed = data.startswith(_SEALED.encode())
    return COMMANDS.decode(data, name) if sealed else _unsealed.decode(data)


def command_name(number: int) -> str:
    """Return the name of the command with a number."""
    return f"commands/{number:09d}"


class CommandLog:
    """The commands of one pipeline.

    Args:
        store: the pipeline's storage.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def read(self, number: int) -> CommandRequest | None:
        """Return the command with a number, or None if there is none. Costs one read."""
        try:
            data = read_document(self._store, command_name(number))
        except NotFound:
            return None
        except Damaged as error:
            return CommandRequest(number, None, error.what)
        try:
            command = _decoded(data, command_name(number))
        except (HeadraceError, *NOT_DECODED) as error:
            return CommandRequest(number, None, f"{command_name(number)} is not a command: {error}")
        if command.format > FORMAT:
            return CommandRequest(number, None, "a newer version of Headrace wrote it")
        return CommandRequest(number, command)

    def pending(self, answered: int) -> list[CommandRequest]:
        """Return the commands that have not been answered, in order."""
        found: list[CommandRequest] = []
        while (request := self.read(answered + len(found))) is not None:
            found.append(request)
        return found

    def put(self, command: Command, answered: int) -> int:
        """Create a command under the next free number, and return that number.

        Args:
            command: the command, with a nonce that no other command has.
            answered: how many commands are known to be answered; lower numbers are taken.

        Raises:
            StorageError: when the command was not created, or when that is not known.
        """
        data = COMMANDS.encode(command)
        number = answered
        while not self._create(number, data, command):
            number += 1
        return number

    def _create(self, number: int, data: bytes, command: Command) -> bool:
        """Create a command under a number; return False if another command has it.

        Returns True as well if an earlier attempt has created this very command.
        """
        failure: StorageError | None = None
        for _ in range(_ATTEMPTS):
            try:
                self._store.create(command_name(number), data)
                return True
            except AlreadyExists:
                return self._is_there(number, command)
            except StorageError as error:
                failure = error
            try:
                if self.read(number) is not None:
                    return self._is_there(number, command)
            except StorageError:
                continue
        assert failure is not None
        raise failure

    def _is_there(self, number: int, command: Command) -> bool:
        request = self.read(number)
        return request is not None and request.command == command
