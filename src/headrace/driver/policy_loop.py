"""The policy loop: shows a policy the measurements at intervals, and asks for what it decides.

It asks by a command in the pipeline's storage, as any user does. So a decision is carried out once,
whatever crashes. It is answered, remembered and aborted like a user's. The loop also publishes the
measurements for other processes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec

from headrace.coordinator.migrations.steering import MigrationController
from headrace.errors import StorageError
from headrace.errors.user_code import error_text, is_from_outside
from headrace.ledger.commands import CommandLog
from headrace.ledger.head import Head
from headrace.ledger.measurements import Decision, Notices
from headrace.migration.measurements import Measurements
from headrace.policies import How, Nothing, Policy, ScalingDecision, command_for, name_of
from headrace.policies.builtin import decision_of
from headrace.storage.base import Store

log = logging.getLogger("headrace")

#: Number of bins up to which the loop looks as often as asked. With more, it looks less often in
#: proportion, because a look takes time for each bin (26 ms for twice this number).
_MANY_BINS = 1 << 15
#: Longest pause in microseconds. A policy whose decisions are refused is asked less and less often.
_SELDOM_US = 3_600_000_000


class Controller:
    """Asks a policy at intervals, and sends its decisions as commands.

    Args:
        policy: the policy; None to only publish measurements.
        how: how often, and how decisions are carried out.
        dry_run: whether decisions are only reported.
        store: the pipeline's storage.
        places: returns how many workers can run at the same time.
        nonce: returns a fresh name at each call.

    Attributes:
        decision: the policy's last decision; None before the first.
    """

    def __init__(
        self,
        policy: Policy | None,
        how: How,
        *,
        dry_run: bool,
        store: Store,
        places: Callable[[], int],
        nonce: Callable[[], str],
    ) -> None:
        self.decision: Decision | None = None
        self._policy = policy
        self._how = how
        self._dry_run = dry_run
        self._commands = CommandLog(store)
        self._notices = Notices(store)
        self._places = places
        self._nonce = nonce
        self._every_us = how.every_us
        self._pause_us = how.every_us  # the pause between two looks
        self._next_us: int | None = None
        self._looked_at = -1  # the step of the last look
        self._command = -1  # number of the newest command until it is answered
        self._patience_us = self._every_us
        self._not_before_us = 0  # until then, the policy is not asked

    def turn(self, head: Head, steering: MigrationController, now_us: int) -> bool:
        """Look, if it is time. Return whether a command was sent. Only between two steps."""
        if self._next_us is None:
            self._next_us = now_us + self._every_us
        # A wrong reading of the clock must not put off the next look for long.
        self._next_us = min(self._next_us, now_us + self._pause_us)
        self._not_before_us = min(self._not_before_us, now_us + self._patience_us)
        nothing_new = self._policy is None and head.step == self._looked_at
        if now_us < self._next_us or nothing_new:
            return False
        seen = steering.meter.measurements(head, now_us, self._places())
        self._pause_us = self._every_us * max(1, len(seen.layout) // _MANY_BINS)
        self._next_us, self._looked_at = now_us + self._pause_us, head.step
        consulted = False
        try:
            if self._policy is not None and is_calm(head):
                consulted = self._go_by(self._policy, seen, head)
            published = steering.published(head, seen)
            self._notices.write(msgspec.structs.replace(published, decision=self.decision))
        except StorageError as error:  # nothing depends on it, and the next look tries again
            log.warning("could not publish what was measured or decided: %s", error.what)
        return consulted

    def _go_by(self, policy: Policy, seen: Measurements, head: Head) -> bool:
        """Ask for what a policy decides. Return whether a command was sent."""
        self._learn(head, seen.now_us)
        if seen.now_us < self._not_before_us:
            return False
        decided = _decision_of(policy, seen)
        before, name = self.decision, name_of(policy)
        wants = not isinstance(decided, Nothing)
        self.decision = Decision(name, seen.now_us, str(decided), wants, self._dry_run)
        if wants and (before is None or _what(before.decided) != _what(str(decided))):
            would = "would" if self._dry_run else "will"
            log.warning("policy %s %s %s", name, would, decided)
        command = command_for(policy, decided, self._how)
        if command is None or self._dry_run:
            return False
        named = msgspec.structs.replace(command, nonce=self._nonce())
        self._command = self._commands.put(named, head.commands)
        self.decision = msgspec.structs.replace(self.decision, command=self._command)
        return True

    def _learn(self, head: Head, now_us: int) -> None:
        """Note the answer to the last command. After a refusal, wait for longer."""
        answer = next((one for one in head.answers if one.number == self._command), None)
        if answer is None:
            return
        self._command = -1
        if answer.applied:
            self._patience_us = self._every_us
            return
        self._patience_us = min(2 * self._patience_us, _SELDOM_US)
        self._not_before_us = now_us + self._patience_us
        log.warning("what a policy wanted was refused: %s", answer.why)


def is_calm(head: Head) -> bool:
    """Return whether a policy may decide.

    It may if nothing moves or is about to, and the pipeline is neither paused nor in a backfill.
    """
    moving = any(not one.is_over for one in head.migrations) or head.updates
    return not (moving or head.paused or head.incomplete)


def _what(decided: str) -> str:
    """Return a decision in words, without its reason."""
    return decided.partition(":")[0]


def _decision_of(policy: Policy, seen: Measurements) -> ScalingDecision:
    """Return a policy's decision.

    A policy that fails wants nothing: it must not end the pipeline.
    """
    try:
        return decision_of(policy, seen)
    except BaseException as error:
        if is_from_outside(error):
            raise
        log.exception("policy %s failed", name_of(policy))
        return Nothing(f"it failed: {error_text(error)}")
