"""Leadership: how a driver becomes the leader of a pipeline, and how its leadership ends.

- A driver that is started plainly claims if no other driver lives, and is refused otherwise
  (:mod:`headrace.driver.admission`).
- A driver that is to *take over* claims at once, whoever leads. The leader is fenced. If the leader
  commits a step before each claim, it is asked to commit no more until it is claimed.
- A driver that *stands by* gets ready, watches the leader, and claims when the leader is gone.
- A driver that asks for a *handover* gets ready, too. Then it asks the leader to end after its
  running step.

All but the second claim on top of the very head on which their decision rests. If anything was
committed since, they are fenced, and nothing has happened.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable
from typing import Literal

import msgspec

from headrace.driver.admission import Admission
from headrace.driver.driver import Driver, Fresh
from headrace.driver.heartbeat import Heartbeat, driver_runs
from headrace.driver.leader_watcher import LOOKS, Decided, LeaderWatcher, whom
from headrace.driver.warm_up import run_warm_up
from headrace.errors import ChangeRefused, Fenced, PipelineError, StorageError
from headrace.ledger.commands import Answer, Command, CommandLog
from headrace.ledger.head import Head
from headrace.ledger.heartbeats import HANDED_OVER, HeartbeatRecord, Heartbeats, HeartbeatSettings
from headrace.protocol.step_summary import StepSummary

log = logging.getLogger("headrace")

#: Claims that a start tries while other drivers keep committing first.
_CLAIMS = 20
#: Looks for the driver that has replaced this one, in so many periods of heartbeats.
_LOOKS_FOR_SUCCESSOR = 6
#: Seconds to wait for a leader that is asked to step aside. It looks for commands every few seconds.
_ASIDE_S = 10.0
#: A leader that has committed nothing for so many seconds will not be in the way of a claim.
_STILL_S = 0.25
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


class Leadership:
    """One run of a driver, with what comes before and after it.

    Args:
        driver: the driver that is to lead.
        heartbeat: how often it writes heartbeats, and how long it waits for those of others.
        standby: whether it waits until no driver leads, also after it was fenced.
        handover: whether it asks the leader to hand over.
        within_s: seconds to wait for the answer to that; None for no limit.
        replaces: whether it claims at once, and so replaces a driver that leads.
        clock: seconds that only go up.

    Attributes:
        take_over: how it took over; None if it did not, or before its first step.

    Raises:
        PipelineError: if more than one of ``standby``, ``handover`` and ``replaces`` is to be done
            at first.
    """

    def __init__(
        self,
        driver: Driver,
        heartbeat: HeartbeatSettings | None = None,
        *,
        standby: bool = False,
        handover: bool = False,
        within_s: float | None = None,
        replaces: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if replaces and (standby or handover):
            raise PipelineError(
                "a job that is to take over at once neither stands by nor asks for a handover",
                remedy="give one of take_over, standby and handover",
            )
        self.take_over: TakeOver | None = None
        self._driver = driver
        self._replaces = replaces
        self._settings = heartbeat or HeartbeatSettings()
        self._standby = standby
        self._handover = handover
        self._within_s = within_s
        self._clock = clock
        self._heartbeats = Heartbeats(driver.store)
        self._heartbeat = Heartbeat(
            self._heartbeats, driver.loop_progress, self._settings, driver.clock.now_us
        )
        self._decided: Decided | None = None
        driver.listeners.append(self._note)

    def run(self) -> str:
        """Lead as soon as that is possible. Return why the run has ended.

        Raises:
            StorageInUse: if another driver lives, and this one neither waits for it nor is to
                replace it.
            Fenced: if another driver has taken over, and this one does not stand by.
            ChangeRefused: if the leader did not hand over.
            HeadraceError: what went wrong. Every committed step is intact.
        """
        with self._heartbeat:
            if self._replaces:
                return self._lead_at_once()
            if not (self._standby or self._handover):
                return self._lead_if_free()
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
        self._heartbeat.ends(why)
        self._driver.give_up()
        self._heartbeat.stop()

    def _get_ready(self) -> None:
        head = self._driver.ledger.open()
        if self._handover and head is not None:
            head = head.made_durable  # the leader does so before it hands over
        self._driver.prepare("new" if head is None else head, run_warm_up)
        self._heartbeat.show_role("asks" if self._handover else "waits")

    def _lead_at_once(self) -> str:
        """Claim, whichever driver leads.

        If that driver commits a step just before, ask it to step aside, and try again.
        """
        self._say_whom_it_replaces()
        on: Head | Fresh = "newest"
        for _ in range(_CLAIMS - 1):
            before_s = self._driver.loop_progress.claimed_s
            try:
                return self._lead(on)
            except Fenced:
                if self._driver.loop_progress.claimed_s != before_s:
                    raise  # it led, and was fenced later
                self._driver.step_back()
            on = self._ask_to_step_aside()
        return self._lead(on)

    def _ask_to_step_aside(self) -> Head | Fresh:
        """Ask the leader to commit nothing more until it is claimed. Return what to claim.

        A leader that commits nothing meanwhile, and does not answer, is claimed as it is.
        """
        watcher = self._watcher()
        watcher.look()
        self._heartbeat.show_role("asks")
        number = self._ask("step_aside", watcher.head)
        began = self._clock()
        while watcher.still_s < _STILL_S and self._clock() - began < _ASIDE_S:
            answer = watcher.answer(number)
            if answer is not None:
                return self._where_answered(answer, watcher) or "newest"
            if self._driver.stop_requested:
                break
            self._pause(_ANSWER_LOOK_S)
            watcher.look()
        return "newest"

    def _lead_if_free(self) -> str:
        """Claim if no other driver lives. Look again if another one has committed just before."""
        admission = Admission(
            self._driver,
            self._watcher(),
            driver_runs,
            self._settings.period_s / LOOKS,
        )
        for _ in range(_CLAIMS):
            on = admission.wait()
            if on is None:
                return "stopped"
            before_s = self._driver.loop_progress.claimed_s
            try:
                return self._lead(on)
            except Fenced:
                if self._driver.loop_progress.claimed_s != before_s:
                    raise  # it led, and was fenced later
                self._driver.step_back()
        raise admission.in_use()

    def _say_whom_it_replaces(self) -> None:
        try:
            head = self._driver.ledger.open()
            leader = None if head is None else self._heartbeats.leader(head.epoch)
        except StorageError:  # the claim will say what is wrong
            return
        if leader is not None and leader.role == "leads" and driver_runs(leader) is not False:
            log.warning("takes over from %s", whom(leader))

    def _lead(self, on: Head | Fresh) -> str:
        try:
            why = self._driver.run(on)
        except Fenced as error:
            epoch = self._driver.loop_progress.epoch
            self._driver.loop_progress.lost()
            successor = None if epoch is None else self._successor(epoch)
            if successor is None:
                raise
            place = f"{error.place}, led by {whom(successor)}"
            raise Fenced(error.what, place=place, remedy=error.remedy) from error
        except BaseException:
            self._heartbeat.ends("failed")
            raise
        self._heartbeat.ends(why)
        return why

    def _successor(self, epoch: int) -> HeartbeatRecord | None:
        """Return the heartbeat of a driver with a higher epoch. It may take a moment to appear."""
        for _ in range(_LOOKS_FOR_SUCCESSOR):
            try:
                found = self._heartbeats.leader(epoch + 1)
            except StorageError:
                return None
            if found is not None or self._driver.stop_requested:
                return found
            self._driver.woken.clear()
            self._driver.woken.wait(self._settings.period_s / LOOKS)
        return None

    def _note(self, summary: StepSummary) -> None:
        """Note at the first step how long the take-over took."""
        decided, self._decided = self._decided, None
        if decided is None:
            return
        now, claimed = self._clock(), self._driver.loop_progress.claimed_s
        self.take_over = TakeOver(
            decided.why,
            summary.head.epoch,
            decided.silent_s,
            claimed - decided.at_s,
            now - decided.at_s,
            now - decided.last_step_s,
        )
        log.warning(
            "%s: leads in epoch %d; %.3f s without a heartbeat before, claimed in %.3f s, first step "
            "(%d) in %.3f s, %.3f s after the last one of the driver before",
            decided.why,
            summary.head.epoch,
            decided.silent_s,
            claimed - decided.at_s,
            summary.step,
            now - decided.at_s,
            now - decided.last_step_s,
        )

    # -- waiting ------------------------------------------------------------------------------

    def _wait(self) -> Decided | str:
        """Wait until this driver is to claim, or is to end. Return the decision, or why it ends."""
        watcher = self._watcher()
        handover, self._handover = self._handover, False
        number: int | None = None
        deadline: float | None = None
        met: str | None = None
        while not self._driver.stop_requested:
            verdict = watcher.look()
            leader = watcher.seen.leader
            if leader is not None and watcher.leader_lives and leader.token != met:
                met = leader.token
                log.warning("waits for %s", whom(leader))
            if verdict == "ended":
                log.warning("the leader has ended (%s), and so does this standby", watcher.end)
                return watcher.end
            if verdict == "gone":
                return watcher.decided("gone")
            if handover and number is None and watcher.leader_lives:
                number = self._ask("hand_over", watcher.head)
                deadline = None if self._within_s is None else self._clock() + self._within_s
            answer = None if number is None else watcher.answer(number)
            if answer is not None:
                return self._answered(answer, watcher)
            if deadline is not None and self._clock() > deadline:
                raise ChangeRefused(
                    "the driver that leads did not hand over in time, and goes on",
                    remedy="ask again, or wait longer: it answers after its running step",
                )
            self._pause(self._settings.period_s / LOOKS if number is None else _ANSWER_LOOK_S)
        return "stopped"

    def _watcher(self) -> LeaderWatcher:
        return LeaderWatcher(self._driver, self._heartbeats, self._settings, self._clock)

    def _pause(self, seconds: float) -> None:
        self._driver.woken.wait(seconds)
        self._driver.woken.clear()
        self._driver.keep_ready()

    def _ask(self, kind: Literal["hand_over", "step_aside"], head: Head | None) -> int:
        """Send the leader a command. Return its number."""
        command = Command(
            kind, to=self._heartbeat.token, by=self._heartbeat.where, nonce=uuid.uuid4().hex
        )
        return CommandLog(self._driver.store).put(command, 0 if head is None else head.commands)

    def _answered(self, answer: Answer, watcher: LeaderWatcher) -> Decided:
        """Decide to claim on top of the manifest with the answer, if the command was applied.

        Raises:
            ChangeRefused: if it was refused, or the other driver has gone on since.
        """
        if not answer.applied:
            raise ChangeRefused(f"it is not handed over: {answer.why}")
        if self._where_answered(answer, watcher) is None:
            raise ChangeRefused(
                "the driver that leads waited for the claim in vain, and goes on",
                remedy="ask again",
            )
        return watcher.decided(HANDED_OVER)

    def _where_answered(self, answer: Answer, watcher: LeaderWatcher) -> Head | None:
        """Return the head with an answer; None if it was refused, or the leader has gone on."""
        head = watcher.head
        return head if answer.applied and head is not None and head.step == answer.step else None
