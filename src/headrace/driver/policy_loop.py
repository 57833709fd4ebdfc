"""The controller: lets a policy look at what was measured now and then, and asks for what it wants.

It asks by a command in the pipeline's storage, as anybody else does. So a decision is
carried out once, whatever crashes, and is answered, remembered and aborted like a user's. Beside that,
it lets other processes see what was measured.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from typing import Any

import msgspec

from headrace.coordinator.migrations.steering import MigrationController
from headrace.errors import StorageError
from headrace.errors.user_code import is_from_outside, said
from headrace.ledger.commands import CommandLog
from headrace.ledger.head import Head
from headrace.ledger.measurements import Decision, Notices
from headrace.migration.measurements import Measurements
from headrace.policies import How, Nothing, Policy, ScalingDecision, command_for, name_of
from headrace.storage.base import Store

log = logging.getLogger("headrace")

#: Up to so many bins it looks as often as asked; with more it looks less often in proportion, since a look
#: takes time for each bin (26 ms for twice as many).
_MANY_BINS = 1 << 15
#: A policy whose decisions are refused is asked less and less often, down to once in this time.
_SELDOM_US = 3_600_000_000


class Controller:
    """Looks, and asks.

    Args:
        policy: what to go by; None only lets others see what was measured.
        how: how often, and how decisions are carried out.
        dry_run: whether decisions are only reported.
        store: the pipeline's storage.
        places: says how many workers can work at once.
        nonce: returns a fresh name at each call.

    Attributes:
        decision: what the policy wanted last.
    """

    def __init__(
        self, policy: Policy | None, how: How, *, dry_run: bool, store: Store,
        places: Callable[[], int], nonce: Callable[[], str],
    ) -> None:  # fmt: skip
        self.decision: Decision | None = None
        self._policy = policy
        self._how = how
        self._dry_run = dry_run
        self._commands = CommandLog(store)
        self._notices = Notices(store)
        self._places = places
        self._nonce = nonce
        self._every_us = how.every_us
        self._pause_us = how.every_us  # between two looks
        self._next_us: int | None = None
        self._looked_at = -1  # up to which step
        self._asked = -1  # the newest command, while it is not answered
        self._patience_us = self._every_us
        self._not_before_us = 0  # nothing is asked for

    def turn(self, head: Head, steering: MigrationController, now_us: int) -> bool:
        """Look, if it is time; return whether something was asked for. Between two steps only."""
        if self._next_us is None:
            self._next_us = now_us + self._every_us
        # (a reading that was wrong must not keep it from looking)
        self._next_us = min(self._next_us, now_us + self._pause_us)
        self._not_before_us = min(self._not_before_us, now_us + self._patience_us)
        nothing_new = self._policy is None and head.step == self._looked_at
        if now_us < self._next_us or nothing_new:
            return False
        seen = steering.meter.measurements(head, now_us, self._places())
        self._pause_us = self._every_us * max(1, len(seen.layout) // _MANY_BINS)
        self._next_us, self._looked_at = now_us + self._pause_us, head.step
        asked = False
        try:
            if self._policy is not None and is_calm(head):
                asked = self._go_by(self._policy, seen, head)
            published = steering.published(head, seen)
            self._notices.write(msgspec.structs.replace(published, decision=self.decision))
        except StorageError as error:  # nothing depends on it; it is tried again
            log.warning("could not tell others what was measured or is wanted: %s", error.what)
        return asked

    def _go_by(self, policy: Policy, seen: Measurements, head: Head) -> bool:
        """Ask for what a policy wants; return whether it wants something."""
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
        self._asked = self._commands.put(named, head.commands)
        self.decision = msgspec.structs.replace(self.decision, command=self._asked)
        return True

    def _learn(self, head: Head, now_us: int) -> None:
        """Learn what has become of what was asked for; be patient after a refusal."""
        answer = next((one for one in head.answers if one.number == self._asked), None)
        if answer is None:
            return
        self._asked = -1
        if answer.applied:
            self._patience_us = self._every_us
            return
        self._patience_us = min(2 * self._patience_us, _SELDOM_US)
        self._not_before_us = now_us + self._patience_us
        log.warning("what a policy wanted was refused: %s", answer.why)


def is_calm(head: Head) -> bool:
    """Say whether a policy may want something: nothing moves, or is about to, and all computations work."""
    moving = any(not one.is_over for one in head.migrations) or head.updates
    return not (moving or head.paused or head.catch_up is not None)


def _what(decided: str) -> str:
    """Return a decision in words without its reason."""
    return decided.partition(":")[0]


def _of_old(policy: Any, seen: Measurements) -> ScalingDecision:
    """Ask a policy that was written for version 0.1."""
    warnings.warn(
        f"policy {name_of(policy)}: rename its method wish() to decide()",
        DeprecationWarning,
        stacklevel=2,
    )
    decided: ScalingDecision = policy.wish(seen)
    return decided


def _decision_of(policy: Policy, seen: Measurements) -> ScalingDecision:
    """Return what a policy wants; one that fails wants nothing, since it must not end the pipeline."""
    try:
        if not hasattr(policy, "decide") and hasattr(policy, "wish"):
            return _of_old(policy, seen)
        return policy.decide(seen)
    except BaseException as error:
        if is_from_outside(error):
            raise
        log.exception("policy %s failed", name_of(policy))
        return Nothing(f"it failed: {said(error)}")
