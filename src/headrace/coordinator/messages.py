"""What the coordinator is told, and what it asks for. Plain data; the driver's shell does the doing."""

from __future__ import annotations

import msgspec

from headrace.coordinator.adoption import Adopted
from headrace.errors import HeadraceError
from headrace.ledger.manifest import Head, Manifest
from headrace.sources.base import Limit, Offer, Position
from headrace.step.plan import Plan, TaskReport

# -- events -----------------------------------------------------------------------------------


class Opened(msgspec.Struct, frozen=True):
    """The ledger was read: the newest head, or None for a new store."""

    head: Head | None
    now_us: int


class Committed(msgspec.Struct, frozen=True):
    """A manifest is committed."""

    head: Head


class Offered(msgspec.Struct, frozen=True):
    """What each injector that has not ended has next; None where nothing is there yet."""

    offers: dict[str, Offer | None]
    now_us: int


class TryEnded(msgspec.Struct, frozen=True):
    """A try ran to its end; these reports came back, after so long."""

    reports: list[TaskReport]
    took_us: int = 0


class TryBroke(msgspec.Struct, frozen=True):
    """A try broke off: the engine failed, not the user's code."""

    why: str


class Released(msgspec.Struct, frozen=True):
    """All sinks have received a step."""

    step: int


class StopAsked(msgspec.Struct, frozen=True):
    """Somebody wants the pipeline to stop after the running step (or at the input's end)."""

    drain: bool


Event = Opened | Committed | Offered | TryEnded | TryBroke | Released | StopAsked

# -- instructions -----------------------------------------------------------------------------


class Commit(msgspec.Struct, frozen=True):
    """Commit a manifest on top of a head."""

    head: Head | None
    manifest: Manifest
    adopted: Adopted | None = None


class Poll(msgspec.Struct, frozen=True):
    """Ask the sources what comes after these positions, at most so much, and read the clock."""

    positions: dict[str, Position]
    limits: dict[str, Limit]


class Run(msgspec.Struct, frozen=True):
    """Run a try. The shell adds the splits of (start, end) to the plan first."""

    plan: Plan
    divisions: dict[str, tuple[Position, Position]]


class Release(msgspec.Struct, frozen=True):
    """Deliver a committed step's staged productions to the sinks."""

    step: int


class Clean(msgspec.Struct, frozen=True):
    """Delete dead files, and manifests below the boundary (ascending)."""

    names: list[str]
    manifests_from: int
    manifests_to: int


class Sweep(msgspec.Struct, frozen=True):
    """Delete what lost tries and stale drivers have left."""


class Wait(msgspec.Struct, frozen=True):
    """Wait until something may have changed, at most until a time."""

    until_us: int


class Stop(msgspec.Struct, frozen=True):
    """The run is over."""

    why: str
    error: HeadraceError | None = None


Instruction = Commit | Poll | Run | Release | Clean | Sweep | Wait | Stop
