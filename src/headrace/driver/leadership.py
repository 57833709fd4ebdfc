"""Leadership: how a driver becomes the leader of a pipeline, and how its leadership ends.

- A driver that is started plainly claims at once.
- A driver that *stands by* gets ready, watches the leader, and claims when the leader is gone.
- A driver that asks for a *handover* gets ready, too. Then it asks the leader to end after its
  running step.

The last two claim on top of the very head on which their decision rests. If anything was committed
since, they are fenced, and nothing has happened.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable

import msgspec

from headrace.driver.driver import Driver, Fresh
from headrace.driver.heartbeat import Heartbeat
from headrace.driver.warm_up import rehearse
from headrace.errors import ChangeRefused, Fenced, StorageError
from headrace.ledger.commands import Answer, Command, CommandLog
from headrace.ledger.head import Head
from headrace.ledger.heartbeats import (
    HANDED_OVER,
    Beats,
    FailureDetector,
    LeaderSeen,
    Lease,
    Verdict,
    leader_among,
)
from headrace.protocol.step_summary import StepSummary

log = logging.getLogger("headrace")

#: Looks of a standby in each period of heartbeats.
_LOOKS = 2
#: Claims that a plain start tries while a leader keeps committing first.
_CLAIMS = 20
#: Seconds between two looks for the answer to a handover.
_ANSWER_LOOK_S = 0.002


class TakeOver(msgspec.Struct, frozen=True):
    """How one driver took over from another. Times are in seconds of the new driver's clock.

    Attributes:
        why: ``gone`` if the previous leader counted as dead or had ended; ``handed over`` if it was
            asked.
        epoch: the epoch of the new leader.
        silent_s: how long the previous leader had shown no heartbeat at the time of the decision.
        claim_s: from the decision to the commit of the claim.
        first_step_s: from the decision to the commit of the first step that computes something.
        gap_s: from the last such step of the previous leader to that commit. The last step is seen
            a little after its own commit: up to half a heartbeat period later by a standby, and
            some ms later in a handover.
    """

    why: str
    epoch: int
    silent_s: float
    claim_s: float
    first_step_s: float
    gap_s: float


class _Decided(msgspec.Struct, frozen=True):
    """The decision to claim.

    Attributes:
        on: the head to claim on top of.
        why: see :attr:`TakeOver.why`.
        at_s: when it was decided.
        silent_s: see :attr:`TakeOver.silent_s`.
        last_step_s: when the previous leader's last step was seen.
    """

    on: Head | Fresh
    why: str
    at_s: float
    silent_s: float
    last_step_s: float


class Leadership:
    """One run of a driver, with what comes before and after it.

    Args:
        driver: the driver that is to lead.
        lease: how often it writes heartbeats, and how long it waits for those of others.
        standby: whether it waits until no driver leads, also after it was fenced.
        handover: whether it asks the leader to hand over.
        within_s: seconds to wait for the answer to that; None for no limit.
        clock: seconds that only go up.

    Attributes:
        take_over: how it took over; None if it did not, or before its first step.
    """

    def __init__(
        self, driver: Driver, lease: Lease | None = None, *, standby: bool = False,
        handover: bool = False, within_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self.take_over: TakeOver | None = None
        self._driver = driver
        self._lease = lease or Lease()
        self._standby = standby
        self._asks = handover
        self._within_s = within_s
        self._clock = clock
        self._beats = Beats(driver.store)
        self._heart = Heartbeat(self._beats, driver.pulse, self._lease, driver.clock.now_us)
        self._decided: _Decided | None = None
        driver.listeners.append(self._note)

    def run(self) -> str:
        """Lead as soon as that is possible. Return why the run has ended.

        Raises:
            Fenced: if another driver has taken over, and this one does not stand by.
            ChangeRefused: if the leader did not hand over.
            HeadraceError: what went wrong. Every committed step is intact.
        """
        with self._heart:
            if not (self._standby or self._asks):
                return self._lead_at_once()
            self._get_ready()
            while True:
                found = self._wait()
                if isinstance(found, str):
                    return found
                self._decided = found
                try:
                    return self._lead(found.on)
                except Fenced as error:
                    if not self._standby:
                        raise
                    log.warning("stands by again: %s", error.what)
                    self._driver.step_back()

    def give_up(self, why: str) -> None:
        """Stop the heartbeat although the driver's thread is stuck, and note why.

        Safe from any thread.
        """
        self._heart.ends(why)
        self._driver.give_up()
        self._heart.leave()

    def _get_ready(self) -> None:
        head = self._driver.ledger.open()
        if self._asks and head is not None:
            head = head.brought_to_storage  # the leader does so before it hands over
        self._driver.prepare("new" if head is None else head, rehearse)
        self._heart.rests_as("asks" if self._asks else "waits")

    def _lead_at_once(self) -> str:
        """Claim, whichever driver leads. Try again if that driver commits a step just before."""
        for _ in range(_CLAIMS - 1):
            before_s = self._driver.pulse.claimed_s
            try:
                return self._lead("newest")
            except Fenced:
                if self._driver.pulse.claimed_s != before_s:
                    raise  # it led, and was fenced later
                self._driver.step_back()
        return self._lead("newest")

    def _lead(self, on: Head | Fresh) -> str:
        try:
            why = self._driver.run(on)
        except Fenced:
            self._driver.pulse.lost()
            raise
        except BaseException:
            self._heart.ends("failed")
            raise
        self._heart.ends(why)
        return why

    def _note(self, summary: StepSummary) -> None:
        """Note at the first step how long the take-over took."""
        decided, self._decided = self._decided, None
        if decided is None:
            return
        now, claimed = self._clock(), self._driver.pulse.claimed_s
        self.take_over = TakeOver(
            decided.why, summary.head.epoch, decided.silent_s, claimed - decided.at_s,
            now - decided.at_s, now - decided.last_step_s,
        )  # fmt: skip
        log.warning(
            "%s: leads in epoch %d; %.3f s without a sign before, claimed in %.3f s, first step "
            "(%d) in %.3f s, %.3f s after the last one of the driver before",
            decided.why, summary.head.epoch, decided.silent_s, claimed - decided.at_s, summary.step,
            now - decided.at_s, now - decided.last_step_s,
        )  # fmt: skip

    # -- waiting ------------------------------------------------------------------------------

    def _wait(self) -> _Decided | str:
        """Wait until this driver is to claim, or is to end. Return the decision, or why it ends."""
        vigil = LeaderWatcher(self._driver, self._beats, self._lease, self._clock)
        asks, self._asks = self._asks, False
        number: int | None = None
        deadline: float | None = None
        while not self._driver.stop_asked:
            verdict = vigil.look()
            if verdict == "ended":
                log.warning("who led has ended (%s), and so does who stood by", vigil.end)
                return vigil.end
            if verdict == "gone":
                return vigil.decided("gone")
            if asks and number is None and vigil.leader_lives:
                number = self._ask(vigil.head)
                deadline = None if self._within_s is None else self._clock() + self._within_s
            answer = None if number is None else vigil.answer(number)
            if answer is not None:
                return self._answered(answer, vigil)
            if deadline is not None and self._clock() > deadline:
                raise ChangeRefused(
                    "the driver that leads did not hand over in time, and goes on",
                    remedy="ask again, or wait longer: it answers after its running step",
                )
            pause_s = self._lease.period_s / _LOOKS if number is None else _ANSWER_LOOK_S
            self._driver.woken.wait(pause_s)
            self._driver.woken.clear()
            self._driver.keep_ready()
        return "stopped"

    def _ask(self, head: Head | None) -> int:
        command = Command(
            "hand_over", to=self._heart.token, by=self._heart.where, nonce=uuid.uuid4().hex
        )  # fmt: skip
        return CommandLog(self._driver.store).put(command, 0 if head is None else head.commands)

    def _answered(self, answer: Answer, vigil: LeaderWatcher) -> _Decided:
        """Decide to claim on top of the manifest with the answer, if the command was applied.

        Raises:
            ChangeRefused: if it was refused, or the other driver has gone on since.
        """
        if not answer.applied:
            raise ChangeRefused(f"it is not handed over: {answer.why}")
        if vigil.head is None or vigil.head.step != answer.step:
            raise ChangeRefused(
                "the driver that leads has waited for the claim in vain, and has gone on",
                remedy="ask again",
            )
        return vigil.decided(HANDED_OVER)


class LeaderWatcher:
    """Watches the leader: reads the storage, and asks a :class:`FailureDetector` for its verdict.

    Args:
        driver: the driver of this process. Its ledger is read.
        beats: the heartbeats of all drivers.
        lease: how often to look, and how long the leader may be silent.
        clock: seconds that only go up.

    Attributes:
        head: the pipeline as of the newest step that was seen.
    """

    def __init__(
        self, driver: Driver, beats: Beats, lease: Lease, clock: Callable[[], float]
    ) -> None:
        self.head: Head | None = None
        self._ledger = driver.ledger
        self._beats = beats
        self._clock = clock
        self._watch = FailureDetector(lease.patience_s)
        self._every_s = lease.period_s / _LOOKS
        self._seen = LeaderSeen(-1, None)
        self._looked_s = float("-inf")
        self._last_step_s = clock()

    def look(self) -> Verdict:
        """Follow the head. If it is time, also look for heartbeats. Return the verdict."""
        try:
            return self._look()
        except StorageError as error:  # a look that fails says nothing about the leader
            log.warning("could not look who leads: %s", error.what)
            return "lives"

    def _look(self) -> Verdict:
        began = self._clock()
        self._follow()
        if began - self._looked_s < self._every_s:
            return "lives"
        self._looked_s = began
        epoch = 0 if self.head is None else self.head.epoch
        leader = leader_among(self._beats.all(), epoch)
        self._seen = LeaderSeen(-1 if self.head is None else self.head.step, leader)
        return self._watch.saw(self._seen, began, self._clock())

    def _follow(self) -> None:
        before = self.head
        if before is not None and not self._ledger.is_followed(before):
            return
        self.head = self._ledger.open(known=before)
        if before is None or (self.head is not None and self.head.done > before.done):
            self._last_step_s = self._clock()

    @property
    def leader_lives(self) -> bool:
        """Whether the leader has shown a heartbeat and has not ended."""
        return self._seen.leader is not None and self._seen.leader.role == "leads"

    @property
    def end(self) -> str:
        """The reason that the previous leader gave for its end."""
        return "" if self._seen.leader is None else self._seen.leader.why

    def answer(self, number: int) -> Answer | None:
        """Return the answer to a command; None while there is none."""
        answers = [] if self.head is None else self.head.answers
        return next((one for one in answers if one.number == number), None)

    def decided(self, why: str) -> _Decided:
        """Return the decision that this driver claims now."""
        on: Head | Fresh = self.head or "new"
        return _Decided(on, why, self._clock(), self._watch.silent_s, self._last_step_s)
