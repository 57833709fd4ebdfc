"""Settings: how a run behaves."""

from __future__ import annotations

from typing import Literal

import msgspec

from headrace.errors import PipelineError
from headrace.eventtime.timestamps import DurationLike, duration_micros
from headrace.pipeline.source import Limit
from headrace.protocol.plan import Exchange
from headrace.storage.bounds import MOST_WORKERS

_MOST_SLICES = 4_096
#: So many steps there are between two checkpoints, at most.
MOST_LIGHT_STEPS = 255


class Settings(msgspec.Struct, frozen=True):
    """How a run behaves; none of it changes what is computed.

    Attributes:
        limit: how much a step takes from each injector, at most.
        target_us: how long a step should take: live injectors are given fewer rows when it takes longer.
            Where it takes more than half of that whatever it reads, it may take twice as long as it does
            then.
        exchange: who carries records between layers; ``auto`` picks by the size of the step.
        driver_exchange_bytes: up to this much input, ``auto`` lets the driver carry.
        cached_bytes: about how much of a computation's state a worker keeps in memory; the bins that
            were not needed for longest are let go, and read again from storage when they are.
        max_tries: how often a step is tried when the engine fails.
        poll_us: how long to wait when there is nothing to do.
        base_every: a base in the ledger every so many steps.
        slices: in how many slices (a power of two) the state of a new pipeline is written whole, one at
            a time, so that no step pays for all.
        slice_every: a slice is written whole every so many steps.
        retain_steps: how many newest steps stay readable, at least.
        retain_us: for how long steps stay readable, at least, by their clock readings; 0 lets their number
            alone decide. What is kept costs storage, and a little of each step.
        sweep_every: leftovers are looked for every so many steps.
        clean_per_step: how many files are deleted after one step, unless the backlog is large.
        outbox_steps: how many committed steps may wait for a slow sink; then the input waits, too.
        outbox_bytes: how many bytes of outputs may, unless one step alone has more.
        straggler_us: how long a step waits for a weak sink to acknowledge what is staged nowhere; then it
            stages that itself, and goes on.
        measure_us: between two steps whose loads are measured is so much time, at least.
        handover_us: how long a driver that was asked to hand over waits for the claim; then it goes on.
        ahead_bytes: about how many bytes a worker may read ahead in a step, of state that moves to it.
        checkpoint_steps: how many steps there are from one checkpoint to the next, at most. With 1 each
            step brings what it changes to storage. With more, the others are *light*: they record what they
            read and what came of it, and whoever takes over computes them again.
        checkpoint_us: how much time there is from one checkpoint to the next, at most; 0 for any.
        recompute_shown: whether a step that other code has begun to show to weak sinks is computed by this
            code, under a new id. By default that is refused (:class:`headrace.errors.CodeChanged`): weak
            sinks keep what they have seen under the old id, which no committed step has.
        task_timeout_us: how long the tasks of a step may take; 0 for any time. One that takes longer is
            ended, with its Python process, and the pipeline stops (:class:`headrace.errors.TaskTimeout`).
        sink_timeout_us: how long a sink may be at one delivery; 0 for any time. Then the pipeline stops
            (:class:`headrace.errors.SinkTimeout`).
        source_timeout_us: how long sources may take to say what they have; 0 for any time. Then the
            pipeline stops (:class:`headrace.errors.SourceTimeout`).
        most_workers: how many workers the pipeline can have, at most, whoever asks for more. Each costs
            a task in every layer of every step.
        update_within_steps: how many steps ahead a configuration update may be published, at most.
    """

    limit: Limit = Limit(rows=100_000, bytes=16 << 20)
    target_us: int = 500_000
    exchange: Exchange | Literal["auto"] = "auto"
    driver_exchange_bytes: int = 1 << 20
    cached_bytes: int = 512 << 20
    max_tries: int = 4
    poll_us: int = 20_000
    base_every: int = 64
    slices: int = 256
    slice_every: int = 1
    retain_steps: int = 16
    retain_us: int = 0
    sweep_every: int = 1_024
    clean_per_step: int = 8
    outbox_steps: int = 64
    outbox_bytes: int = 256 << 20
    straggler_us: int = 1_000_000
    measure_us: int = 250_000
    ahead_bytes: int = 2 << 20
    handover_us: int = 5_000_000
    checkpoint_steps: int = 1
    checkpoint_us: int = 0
    recompute_shown: bool = False
    task_timeout_us: int = 1_800_000_000
    sink_timeout_us: int = 600_000_000
    source_timeout_us: int = 600_000_000
    most_workers: int = 4_096
    update_within_steps: int = 100_000

    @property
    def has_light_steps(self) -> bool:
        """Whether some steps leave state to be brought to storage by later ones."""
        return self.checkpoint_steps > 1


def with_checkpoints(settings: Settings, every: int | DurationLike | None) -> Settings:
    """Return settings with a checkpoint every so many steps, or after so much time.

    Raises:
        PipelineError: for what is neither.
    """
    if every is None:
        return settings
    if isinstance(every, int):
        return msgspec.structs.replace(settings, checkpoint_steps=every, checkpoint_us=0)
    return msgspec.structs.replace(
        settings, checkpoint_steps=MOST_LIGHT_STEPS + 1, checkpoint_us=duration_micros(every)
    )


def with_timeouts(
    settings: Settings, task: DurationLike | None, sink: DurationLike | None
) -> Settings:
    """Return settings with other times that tasks and sinks may take; None leaves what there is."""
    if task is not None:
        settings = msgspec.structs.replace(settings, task_timeout_us=duration_micros(task))
    if sink is not None:
        settings = msgspec.structs.replace(settings, sink_timeout_us=duration_micros(sink))
    return settings


def check_settings(settings: Settings) -> None:
    """Check what no pipeline could run with.

    Raises:
        PipelineError: for a number of slices that is no power of two, or too large; for a number of
            steps between checkpoints that is out of bounds; for negative bounds of what is kept.
    """
    if not 1 <= settings.checkpoint_steps <= MOST_LIGHT_STEPS + 1:
        raise PipelineError(
            f"a checkpoint every {settings.checkpoint_steps} steps is not possible",
            remedy=f"use 1 to {MOST_LIGHT_STEPS + 1}; each plan names the files of all steps in between",
        )
    slices = settings.slices
    if not 1 <= slices <= _MOST_SLICES or slices & (slices - 1):
        raise PipelineError(
            f"{slices} is not a number of slices",
            remedy=f"use a power of two from 1 to {_MOST_SLICES}",
        )
    if not 1 <= settings.most_workers <= MOST_WORKERS:
        raise PipelineError(
            f"most_workers={settings.most_workers} is not possible",
            remedy=f"use 1 to {MOST_WORKERS:,}",
        )
    if settings.retain_steps < 0 or settings.retain_us < 0:
        raise PipelineError(
            "retain_steps and retain_us cannot be negative",
            remedy="say how many steps, and for how many microseconds, are to stay readable",
        )
