"""Settings: how a run behaves."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from headrace.errors import PipelineError
from headrace.errors.deprecated import Renamed
from headrace.eventtime.durations import DurationLike, duration_micros, take_durations
from headrace.pipeline.source import Limit
from headrace.protocol.plan import Exchange
from headrace.storage.bounds import MOST_WORKERS

_MOST_SLICES = 4_096
#: Maximum number of uncheckpointed steps between two checkpoints.
MOST_UNCHECKPOINTED_STEPS = 255
#: A task writes so many files that may be packed: changes of state, and outputs.
FILES_OF_TASK = 2
#: All files of a step that are packed into its manifest have at most this size together.
MOST_PACKED_BYTES = 8 << 20
_RENAMED = Renamed(max_tries="max_attempts")
#: How many steps stay readable by default, for how long others do, and how many of these at most.
#: A pipeline of steps of some milliseconds makes tens of thousands in five minutes.
_RETAIN_STEPS = 16
_RETAIN_US = 300_000_000
_RETAIN_MOST_STEPS = 4_096


class Retention(msgspec.Struct, frozen=True):
    """Which steps stay readable.

    Attributes:
        steps: so many of the newest.
        age_us: those that are younger than this.
        most_steps: at most so many because of their age; None for any number.
    """

    steps: int = _RETAIN_STEPS
    age_us: int = _RETAIN_US
    most_steps: int | None = _RETAIN_MOST_STEPS


class _WithOldNames(msgspec.StructMeta):
    """Accepts the names that settings had in version 0.1, with a warning."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return super().__call__(*args, **_RENAMED.arguments(kwargs, "Settings"))


class Settings(msgspec.Struct, frozen=True, metaclass=_WithOldNames):
    """How a run behaves: the pace of its steps, and upkeep.

    Settings change no results, with one exception. Records are judged to be late a step at a time,
    and ``limit`` and ``target`` decide how the input is divided into steps. So where a record may
    be later than its watermark's rule allows, they can decide whether it is late, and with it the
    results that depend on late records.

    Each attribute that ends in ``_us`` is in microseconds, and can be given as a duration instead,
    under its name without ``_us``: ``Settings(target="1s", retain=timedelta(days=1))``.

    Attributes:
        limit: the most that a step takes from each injector.
        target_us: how long a step should take. If steps take longer, live injectors are given fewer
            rows. If a step takes more than half of this whatever it reads, it may last twice as
            long as that fixed time.
        exchange: how records travel between layers; ``auto`` chooses by the size of the step, and lets
            workers stay as resident tasks of Spark, where there are slots for them. Any other
            makes each step one or more jobs.
        driver_exchange_bytes: up to this much input, ``auto`` lets records travel through the
            driver.
        cached_bytes: about how much of a computation's state a worker keeps in memory. The bins
            that were not needed for longest are evicted, and read again from storage when they are
            needed.
        packed_bytes: up to this size, the changes of state of a task are stored within the manifest
            of the step, so that the step waits for one file and not for several. Of outputs it is a
            quarter of that. With 0, all are files of their own. So are those of a pipeline whose
            checkpoints are rare, or whose records travel through Spark's shuffle.
        max_attempts: how many attempts a step gets when the engine fails.
        poll_us: how long to wait when there is nothing to do.
        base_every: number of steps from one base in the ledger to the next.
        slices: number of slices (a power of two) in which the state of a new pipeline is written
            whole, one at a time, so that no step pays for all.
        slice_every: number of steps from one slice to the next.
        retain_steps: how many of the newest steps stay readable, at least.
        retain_us: for how long steps stay readable, at least, by their clock readings; with 0 only
            their number counts. What is kept costs storage, and a little time in each step. If
            neither is given, 16 steps stay, and those of the last five minutes as long as they are
            no more than 4,096. If one is given, the other is 16 or 0.
        sweep_every: number of steps from one search for leftover files to the next.
        clean_per_step: how many files are deleted after a step, unless many are waiting.
        outbox_steps: how many committed steps may wait for a slow sink before the input waits, too.
        outbox_bytes: how many bytes of outputs may wait, unless one step alone has more.
        straggler_us: how long a step waits for a weak sink to acknowledge results that are in no
            file. Then the step stages them and goes on.
        measure_us: the least time between two steps whose loads are measured.
        handover_us: how long a driver that hands over waits for the claim before it goes on.
        ahead_bytes: about how many bytes a worker may read ahead in a step, of state that moves to
            it.
        checkpoint_steps: the most steps from one checkpoint to the next. With 1, each step writes
            its changes to storage. With more, the others are *uncheckpointed*: they record what
            they read and which results they had, and after a crash they are computed again.
        checkpoint_us: the most time from one checkpoint to the next; 0 for no limit.
        recompute_shown: whether a step that other code has started to show to weak sinks is
            computed by this code, under a new id. By default that is refused
            (:class:`headrace.errors.CodeChanged`): weak sinks keep what they have seen under the
            old id, which no committed step has.
        upgrade_rows: on how many stored rows of each computation the upgrade functions of newer code are
            tried before it claims the pipeline; 0 for none. If one fails, nothing has changed, and
            the older code can go on.
        trial_steps: a computation that a change of the running pipeline has added or replaced is on
            trial until it has had records in this many steps. If it raises meanwhile, the change is
            taken back, and the pipeline goes on as it was; 0 for no trial.
        task_timeout_us: how long the tasks of a step may take; 0 for no limit. A task that takes
            longer is ended with its Python process, and the pipeline stops
            (:class:`headrace.errors.TaskTimeout`).
        sink_timeout_us: how long one delivery to a sink may take before the pipeline stops
            (:class:`headrace.errors.SinkTimeout`); 0 for no limit.
        source_timeout_us: how long sources may take to say what they have before the pipeline stops
            (:class:`headrace.errors.SourceTimeout`); 0 for no limit.
        most_workers: the most workers that the pipeline can have, whoever asks for more. Each
            worker costs a task in every layer of every step.
        update_within_steps: how many steps ahead a configuration update may be published, at most.
        seed_bytes: about how many bytes of the stored rows of its tables a step gives to a view that was
            added.

    Example::

        settings = hr.Settings(limit=hr.Limit(10_000, 1 << 20), retain_steps=1_000)
        with hr.run(p, storage="state/hits", runner="inline", settings=settings) as job:
            job.drain()
    """

    limit: Limit = Limit(rows=100_000, bytes=16 << 20)
    target_us: int = 500_000
    exchange: Exchange | Literal["auto"] = "auto"
    driver_exchange_bytes: int = 1 << 20
    cached_bytes: int = 512 << 20
    packed_bytes: int = 256 << 10
    max_attempts: int = 4
    poll_us: int = 20_000
    base_every: int = 64
    slices: int = 256
    slice_every: int = 1
    retain_steps: int | None = None
    retain_us: int | None = None
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
    upgrade_rows: int = 100_000
    trial_steps: int = 16
    task_timeout_us: int = 1_800_000_000
    sink_timeout_us: int = 600_000_000
    source_timeout_us: int = 600_000_000
    most_workers: int = 4_096
    update_within_steps: int = 100_000
    seed_bytes: int = 16 << 20
    # The same as durations. They are None once they are stored in the fields above.
    target: DurationLike | None = None
    poll: DurationLike | None = None
    retain: DurationLike | None = None
    straggler: DurationLike | None = None
    measure: DurationLike | None = None
    handover: DurationLike | None = None
    checkpoint: DurationLike | None = None
    task_timeout: DurationLike | None = None
    sink_timeout: DurationLike | None = None
    source_timeout: DurationLike | None = None

    def __post_init__(self) -> None:
        take_durations(self)

    @property
    def max_tries(self) -> int:
        """The name of ``max_attempts`` in version 0.1."""
        _RENAMED.warn("max_tries", "Settings", level=2)
        return self.max_attempts

    @property
    def retention(self) -> Retention:
        """What stays readable."""
        if self.retain_steps is None and self.retain_us is None:
            return Retention()
        steps = _RETAIN_STEPS if self.retain_steps is None else self.retain_steps
        return Retention(steps, self.retain_us or 0, None)

    @property
    def has_uncheckpointed_steps(self) -> bool:
        """Whether some steps are uncheckpointed."""
        return self.checkpoint_steps > 1


def with_checkpoints(settings: Settings, every: int | DurationLike | None) -> Settings:
    """Return settings with a checkpoint every given number of steps, or after a given time.

    Raises:
        PipelineError: for a value that is neither.
    """
    if every is None:
        return settings
    if isinstance(every, int):
        return msgspec.structs.replace(settings, checkpoint_steps=every, checkpoint_us=0)
    return msgspec.structs.replace(
        settings,
        checkpoint_steps=MOST_UNCHECKPOINTED_STEPS + 1,
        checkpoint_us=duration_micros(every, "checkpoint_every"),
    )


def with_timeouts(
    settings: Settings, task: DurationLike | None, sink: DurationLike | None
) -> Settings:
    """Return settings with other timeouts of tasks and sinks; None keeps the present one."""
    if task is not None:
        settings = msgspec.structs.replace(
            settings, task_timeout_us=duration_micros(task, "task_timeout")
        )
    if sink is not None:
        settings = msgspec.structs.replace(
            settings, sink_timeout_us=duration_micros(sink, "sink_timeout")
        )
    return settings


def check_settings(settings: Settings) -> None:
    """Check for settings that no pipeline could run with.

    Raises:
        PipelineError: for a number of slices that is not a power of two or is too large; for a
            number of workers, of bytes to pack or to give to a view, or of steps between checkpoints
            that is out of bounds; for negative retention.
    """
    if not 1 <= settings.checkpoint_steps <= MOST_UNCHECKPOINTED_STEPS + 1:
        raise PipelineError(
            f"a checkpoint every {settings.checkpoint_steps} steps is not possible",
            remedy=f"use 1 to {MOST_UNCHECKPOINTED_STEPS + 1}; each plan names the files of all steps in "
            "between",
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
    if not 0 <= settings.packed_bytes <= MOST_PACKED_BYTES:
        raise PipelineError(
            f"packed_bytes={settings.packed_bytes:,} is not possible",
            remedy=f"use 0 to {MOST_PACKED_BYTES:,}: a manifest is written and held in memory whole",
        )
    if settings.seed_bytes < 1:
        raise PipelineError(
            f"seed_bytes={settings.seed_bytes:,} is not possible", remedy="use 1 or more"
        )
    if settings.retention.steps < 0 or settings.retention.age_us < 0:
        raise PipelineError(
            "retain_steps and retain cannot be negative",
            remedy="say how many steps are to stay readable, and for how long",
        )
