"""One thread in which everything happens, in an order that a seed decides.

What runs side by side in the world (drivers, tasks, those who give commands) are *actors* here: the real
code, each in a greenlet of its own, which gives way at each of its effects. Whoever goes next, how long the
others stand still and who dies is drawn from the seed. So a run is a function of its seed.
"""

from __future__ import annotations

import contextlib
import hashlib
import random
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

from greenlet import getcurrent, greenlet

from tests.support.faults import SimulatedCrash

#: Who goes on after an effect mostly is who had it, so that somebody gets far while others stand still.
_BURSTS = [1, 1, 2, 4, 12, 40]
#: The newest events are kept, for a story of what went wrong.
_TOLD = 400


class Actor:
    """Something that runs beside others.

    Attributes:
        error: what ended it, other than its death.
        begun: whether it has had a turn.
        done: whether it is over.
    """

    def __init__(self, name: str, work: Callable[[], Any], hub: greenlet) -> None:
        self.name = name
        self.begun = False
        self.done = False
        self.result: Any = None
        self.error: BaseException | None = None
        self.wakes_us = 0
        self.waits_for: list[Actor] = []
        self._work = work
        self.greenlet = greenlet(self._live, hub)

    def _live(self) -> None:
        self.begun = True
        try:
            with contextlib.suppress(SimulatedCrash):
                self.result = self._work()
        except BaseException as error:
            self.error = error
        self.done = True


class Kernel:
    """Runs actors, one at a time.

    Args:
        seed: decides everything.

    Attributes:
        now_us: what time it is; it moves with each event, and when all actors sleep.
        events: how many effects there were.
        seen: how often something happened that is worth a name.
    """

    def __init__(self, seed: int, start_us: int = 1_700_000_000_000_000) -> None:
        self.rng = random.Random(seed)
        self.now_us = start_us
        self.events = 0
        self.seen: Counter[str] = Counter()
        self.story: deque[str] = deque(maxlen=_TOLD)
        self._digest = hashlib.blake2b(digest_size=16)
        self._actors: list[Actor] = []
        self._hub = getcurrent()
        self._current: Actor | None = None
        self._burst = 0

    # -- for actors ---------------------------------------------------------------------------

    def spawn(self, name: str, work: Callable[[], Any]) -> Actor:
        """Let something run beside the others, from its next turn on."""
        actor = Actor(name, work, self._hub)
        self._actors.append(actor)
        return actor

    def event(self, what: str) -> None:
        """Give way before an effect."""
        self.note(what)
        self.now_us += self.rng.randrange(50, 2_000)
        self._burst -= 1
        if self._burst < 0:
            self._hub.switch()

    def note(self, what: str) -> None:
        """Remember an effect."""
        self.events += 1
        name = self._current.name if self._current is not None else ""
        line = f"{name}: {what}"
        self._digest.update(line.encode())
        self.story.append(line)

    def sleep(self, us: int) -> None:
        """Let the current actor stand still for so long, by the kernel's clock."""
        actor = self._current
        assert actor is not None
        actor.wakes_us = self.now_us + us
        self._burst = 0
        self._hub.switch()

    def wait_for(self, actors: list[Actor]) -> None:
        """Let the current actor stand still until others are over."""
        self.current.waits_for = actors
        while not all(actor.done for actor in actors):
            self._burst = 0
            self._hub.switch()
        self.current.waits_for = []

    def saw(self, what: str) -> None:
        """Count a situation."""
        self.seen[what] += 1

    def chance(self, share: float) -> bool:
        """Draw whether something happens."""
        return share > 0 and self.rng.random() < share

    # -- for who runs it ----------------------------------------------------------------------

    def kill(self, actor: Actor) -> None:
        """End an actor where it stands; nothing that it does afterwards has an effect."""
        if not actor.done:
            self._switch_to(actor, SimulatedCrash())

    def freeze(self, actor: Actor, us: int) -> None:
        """Let an actor stand still for so long, wherever it is."""
        actor.wakes_us = max(actor.wakes_us, self.now_us + us)

    def run(self, until: Callable[[], bool], most_events: int) -> bool:
        """Run until something is so; say whether it came to that within so many events."""
        last = self.events + most_events
        while not until():
            if self.events >= last or not self._turn():
                return False
        return True

    def end(self) -> None:
        """End all actors."""
        for actor in self._actors:
            while not actor.done:
                self.kill(actor)

    def _turn(self) -> bool:
        self._actors = [actor for actor in self._actors if not actor.done]
        if not self._actors:
            return False
        ready = [a for a in self._actors if all(other.done for other in a.waits_for)]
        awake = [actor for actor in ready if actor.wakes_us <= self.now_us]
        if not awake:
            self.now_us = min(actor.wakes_us for actor in ready)
            return True
        self._burst = self.rng.choice(_BURSTS)
        self._switch_to(self.rng.choice(awake))
        self.events += 1  # (so that those who only wait come to an end, too)
        return True

    def _switch_to(self, actor: Actor, error: BaseException | None = None) -> None:
        before, self._current = self._current, actor
        if error is None:
            actor.greenlet.switch()
        elif actor.greenlet:
            actor.greenlet.throw(error)
        else:
            actor.done = True  # it had not begun
        self._current = before

    @property
    def current(self) -> Actor:
        """Whose turn it is."""
        assert self._current is not None
        return self._current

    @property
    def fingerprint(self) -> str:
        """Names all that has happened, in its order."""
        return self._digest.hexdigest()
