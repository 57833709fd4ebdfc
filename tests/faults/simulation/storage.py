"""A process's view of the one storage: each operation is an event, and may fail as storage does."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from headrace.errors import AlreadyExists, NotFound, StorageError, StorageFull
from headrace.storage.base import Store
from headrace.storage.memory import MemoryStore
from tests.faults.simulation.kernel import Kernel
from tests.faults.simulation.options import Options
from tests.support.faults import SimulatedCrash

T = TypeVar("T")

#: A list may be so far behind: a little, or all the way back to the beginning.
_LAGS_US = [400_000, 1 << 40]
#: Who stands still does so for up to so long: a few events of the others, or hundreds of them.
LONG_US = [5_000, 50_000, 500_000, 2_000_000]
#: What hangs does so for longer than anybody waits.
HANGS_US = 60_000_000
#: While a list lags behind, such a part of all others do so as well; and it is so often as far behind as it
#: can be.
_STUCK, _ALL_THE_WAY = 0.9, 0.5
_FIRST = "manifests/000000000000"
#: Where a create's reply is lost, it is sent again so often by what lies between.
_SENT_AGAIN = 0.5
#: For so long there is no room.
_FULL_US = 300_000


class Disk:
    """What is really stored, whoever looks; and what lists that lag behind still show.

    Args:
        kernel: whose events they are.
        options: what fails.
        world: the disk that all is over with, and that faults are counted at; by default this one.
        store: what is stored so far.

    Attributes:
        calm: from now on nothing fails any more.
        over: from now on nothing has an effect any more.
    """

    def __init__(
        self,
        kernel: Kernel,
        options: Options,
        world: Disk | None = None,
        store: MemoryStore | None = None,
    ) -> None:
        self._world = world
        self.kernel = kernel
        self.options = options
        self.store = store or MemoryStore()
        self._calm = False
        self.over = False
        self.full_until_us = 0
        self.faults = 0
        self._made: dict[str, int] = {}
        self._gone: dict[str, tuple[int, int]] = {}
        self._begun_us = kernel.now_us
        self._lag_us = kernel.rng.choice(_LAGS_US)
        self._stuck_at_us = self._stuck_until_us = 0

    @property
    def is_over(self) -> bool:
        """Whether nothing has an effect any more."""
        return self.over if self._world is None else self._world.is_over

    @property
    def calm(self) -> bool:
        return self._calm if self._world is None else self._world.calm

    @calm.setter
    def calm(self, calm: bool) -> None:
        self._calm = calm

    def fault(self, share: float, name: str) -> bool:
        """Draw whether a fault happens, and count it."""
        if self._world is not None:
            return self._world.fault(share, name)
        if self.calm or not self.kernel.chance(share):
            return False
        self.faults += 1
        self.kernel.note(f"fault: {name}")
        self.kernel.saw(f"fault: {name}")
        return True

    def made(self, name: str) -> None:
        """Remember when a name came."""
        self._made.setdefault(name, self.kernel.now_us)

    def gone(self, name: str) -> None:
        """Remember when a name went, and when it had come."""
        made_us = self._made.pop(name, None)
        if made_us is not None:
            self._gone[name] = made_us, self.kernel.now_us

    def lags(self) -> bool:
        """Draw whether a list lags behind; where one does, others do so for a while."""
        rng, now_us = self.kernel.rng, self.kernel.now_us
        if now_us < self._stuck_until_us and not self.calm and rng.random() < _STUCK:
            return True
        if not self.fault(self.options.stale_list, "stale list"):
            return False
        most = min(self._lag_us, now_us - self._begun_us)
        back = rng.randrange(most + 1)
        if rng.random() < _ALL_THE_WAY:  # (to the one manifest that stays for ever)
            back = min(now_us - self._made.get(_FIRST, self._begun_us), most)
        self._stuck_at_us = now_us - back
        self._stuck_until_us = now_us + rng.choice(LONG_US)
        return True

    def stale(self, prefix: str) -> list[str]:
        """Return the names as they were a while ago."""
        then = self._stuck_at_us
        there = {n for n in self.store.list(prefix) if self._made.get(n, 0) <= then}
        gone = {
            name
            for name, (made_us, gone_us) in self._gone.items()
            if made_us <= then < gone_us and name.startswith(prefix)
        }
        return sorted(there | gone)


class ProcessStore(Store):
    """What one process sees.

    Args:
        disk: what is stored.
        process: whose view it is; where it has two, one is of the other.

    Attributes:
        dead: whether the process is; nothing that it still does has an effect.
    """

    def __init__(self, disk: Disk, process: ProcessStore | None = None) -> None:
        self._disk = disk
        self._process = process
        self._dead = False

    @property
    def dead(self) -> bool:
        return self._dead if self._process is None else self._process.dead

    @dead.setter
    def dead(self, dead: bool) -> None:
        if self._process is not None:
            self._process.dead = dead
        self._dead = dead

    @property
    def location(self) -> str:
        return "simulated://"  # (that of what is stored is another one each time)

    def _do(
        self, what: str, work: Callable[[], T], data: bytes | None = None, creates: str = ""
    ) -> T:
        disk, kernel, options = self._disk, self._disk.kernel, self._disk.options
        self._alive()
        kernel.event(what)
        self._alive()
        if disk.fault(options.slow, "slow"):
            kernel.sleep(kernel.rng.choice(LONG_US))
            self._alive()
        if disk.fault(options.error, "error"):
            raise StorageError("the storage hiccupped")
        if disk.fault(options.crash, "crash before"):
            raise self._crash()
        if data is not None:
            self._room()
        result = work()
        if disk.fault(options.crash, "crash after"):
            raise self._crash()
        if disk.fault(options.lost_reply, "lost reply"):
            self._sent_again(creates)
            raise StorageError("the reply was lost")
        return result

    def _sent_again(self, name: str) -> None:
        """Let what lies between send a create a second time, now and then: then it meets itself.

        (Not where it was cleaned away since; that is outside the model.)
        """
        kernel = self._disk.kernel
        if not name or not kernel.chance(_SENT_AGAIN):
            return
        kernel.event("sent again")
        self._alive()
        if name in self._disk.store.list(name):
            kernel.saw("a create met itself")
            raise AlreadyExists(f"{name} exists")

    def effect(self, what: str, crash: str = "crash in delivery") -> None:
        """Give way before an effect that is not the storage's, or die there."""
        self._alive()
        self._disk.kernel.event(what)
        self._alive()
        if self._disk.fault(self._disk.options.crash, crash):
            raise self._crash()

    def _alive(self) -> None:
        if self.dead or self._disk.is_over:
            raise SimulatedCrash

    def _crash(self) -> SimulatedCrash:
        self.dead = True
        return SimulatedCrash()

    def _room(self) -> None:
        disk, kernel = self._disk, self._disk.kernel
        if disk.fault(disk.options.full / 10, "full"):
            disk.full_until_us = kernel.now_us + kernel.rng.randrange(_FULL_US)
        if not disk.calm and kernel.now_us < disk.full_until_us:
            raise StorageFull("no room is left", remedy="make room and start again")

    def create(self, name: str, data: bytes) -> None:
        def work() -> None:
            self._disk.store.create(name, data)
            self._disk.made(name)

        self._do(f"create {name}", work, data, creates=name)

    def write(self, name: str, data: bytes) -> None:
        def work() -> None:
            kept = data
            torn = self._disk.fault(self._disk.options.torn, "torn write")
            if torn:
                kept = data[: self._disk.kernel.rng.randrange(len(data) + 1)]
            self._disk.store.write(name, kept)
            self._disk.made(name)
            if torn:
                raise self._crash()

        self._do(f"write {name}", work, data)

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        def work() -> bytes:
            return self._disk.store.read(name, offset, length)

        try:
            return self._do(f"read {name}", work)
        except NotFound:
            self._disk.kernel.note("not found")
            raise

    def list(self, prefix: str) -> list[str]:
        def work() -> list[str]:
            if self._disk.lags():
                return self._disk.stale(prefix)
            return self._disk.store.list(prefix)

        return self._do(f"list {prefix}", work)

    def delete(self, name: str) -> None:
        def work() -> None:
            self._disk.store.delete(name)
            self._disk.gone(name)

        self._do(f"delete {name}", work)
