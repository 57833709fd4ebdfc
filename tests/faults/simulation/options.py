"""What a seed lets happen: each run has a random part of all faults, so that each is alone at times."""

from __future__ import annotations

import random
from dataclasses import dataclass, fields

#: How likely each fault is at each event where it can happen, in a run that has it.
_SHARES = [0.001, 0.003, 0.01]
#: How likely a run has a fault at all.
_PART = 0.55
#: Faults that every operation of the storage may have; each run has enough of some of them.
_COMMON = ["error", "lost_reply", "crash", "slow"]
_ENOUGH = 0.02


@dataclass(frozen=True)
class Options:
    """The likelihood of each fault at each event where it can happen; how the world is built.

    Attributes:
        error: an operation of the store fails, and has no effect.
        lost_reply: it has its effect, and fails.
        crash: a process dies before or after an operation.
        torn: a process dies within a write, of which a part is left.
        slow: a process stands still before an operation, for longer than others need for many steps.
        stale_list: a list that lacks what is new, or has what is gone.
        full: the storage has no room, for a while.
        zombie: a task is given up, and goes on all the same.
        twice: a task is run a second time, while the first attempt goes on.
        executor: a process that runs tasks dies, with all that it remembers.
        host: with it all files that were left on its host.
        message: what a task sends to another one, or reports, is lost.
        rival: another driver takes over while one is at work.
        reign: a driver stands by, or is handed over to, and shows that it lives.
        commands: somebody asks for something that moves state.
        copies: the outside sends a record again.
        clock: a driver's clock jumps.
        years: a driver's clock is years ahead, or back, for a few readings, and then right again.
        sink: a sink takes longer than others need for many steps.
        sink_hangs: a sink does not return.
        task_hangs: a task does not come to its end.
        code: a driver that is started has other code than the one before.
    """

    error: float = 0.0
    lost_reply: float = 0.0
    crash: float = 0.0
    torn: float = 0.0
    slow: float = 0.0
    stale_list: float = 0.0
    full: float = 0.0
    zombie: float = 0.0
    twice: float = 0.0
    executor: float = 0.0
    host: float = 0.0
    message: float = 0.0
    rival: float = 0.0
    reign: float = 0.0
    commands: float = 0.0
    copies: float = 0.0
    clock: float = 0.0
    years: float = 0.0
    sink: float = 0.0
    sink_hangs: float = 0.0
    task_hangs: float = 0.0
    code: float = 0.0

    @classmethod
    def drawn(cls, rng: random.Random) -> Options:
        """Return what a seed lets happen."""
        shares = {
            field.name: rng.choice(_SHARES) if rng.random() < _PART else 0.0
            for field in fields(cls)
        }
        if sum(shares[name] for name in _COMMON) < _ENOUGH:
            shares[rng.choice(_COMMON)] += _ENOUGH
        return cls(**shares)
