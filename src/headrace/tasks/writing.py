"""What an attempt writes: state changes, the slice, staged and retained productions.

By default each step is a checkpoint: its changes go to the storage. An uncheckpointed step leaves
its changes in a soft file, and its small productions for sinks in no file at all. The next
checkpoint then writes the net changes of all these steps.
"""

from __future__ import annotations

import pyarrow as pa

from headrace.keyspace.digests import add_digests, digest_of
from headrace.keyspace.layout import Layout
from headrace.keyspace.ranges import Ranges
from headrace.pipeline import Pipeline
from headrace.protocol.plan import ChainPlan, StepPlan, TaskReport
from headrace.runfiles.batches import combined
from headrace.runfiles.format import OUTPUT, FileRef, RunPart, RunReader, write_run
from headrace.runfiles.newest_rows import Dated, newest
from headrace.runfiles.sections import due_rows
from headrace.storage.base import Store
from headrace.storage.soft import soft_folder

#: Staged productions up to this size are returned with the report, so that delivery needs no read.
INLINE_BYTES = 1 << 18
#: Outputs are packed up to this part of what state is. They are needed for a moment, and would stay
#: for as long as the changes of state beside them.
_PART_OF_OUTPUTS = 4


class AttemptFiles:
    """The files of one attempt. They are written all at once; small ones are packed instead.

    Args:
        plan: the plan of the step.
        layout: bins and owners.
        report: the report of the attempt.
    """

    def __init__(self, plan: StepPlan, layout: Layout, report: TaskReport) -> None:
        self._plan = plan
        self._layout = layout
        self._at = report.layer, report.worker
        self._stem = plan.file_stem(*self._at, report.task_attempt)
        self._files: dict[str, bytes] = {}
        self._packed = report.packed

    def add(self, folder: str, parts: list[RunPart], *, most_packed: int = -1) -> FileRef | None:
        """Add a file to a folder and return its reference. Without parts, return None.

        Args:
            folder: the folder.
            parts: what the file holds.
            most_packed: up to which size the file goes into the manifest; -1 if it never does.
        """
        if not parts:
            return None
        data, checksum = write_run(parts, self._layout)
        name = f"{folder}{self._stem}"
        if len(data) <= most_packed:
            self._packed[name] = data
        else:
            self._files[name] = data
        owners = list(dict.fromkeys(part.owner for part in parts))
        lineage = self._plan.lineage or self._layout.digest
        return FileRef(name, len(data), checksum, self._plan.step, *self._at, owners, lineage)

    @property
    def most_packed_outputs(self) -> int:
        """Up to which size a file with outputs goes into the manifest."""
        return self._plan.packed_bytes // _PART_OF_OUTPUTS

    def write(self, store: Store) -> None:
        """Write the files that are not packed. Afterwards they are durable, except soft files."""
        store.write_all(self._files)


def note_changes(changes: list[RunPart], report: TaskReport) -> None:
    """Add the digests of state changes to a report."""
    for part in changes:
        node = report.nodes[part.owner]
        node.state_digest = add_digests(node.state_digest, digest_of(part.batch))


def since_checkpoint(
    changes: list[RunPart], chain: ChainPlan, store: Store, pipeline: Pipeline
) -> list[RunPart]:
    """Return all changes since the last checkpoint. For each row this is the newest change.

    Args:
        changes: those of this step.
        chain: names the soft files of the steps before.
        store: where these are.
        pipeline: the pipeline whose state changed.

    Raises:
        StateLost: a soft file is missing.
    """
    soft = [ref for _, ref, _ in chain.soft]
    if not soft:
        return changes
    found: dict[tuple[str, str], list[Dated]] = {}
    for ref in soft:
        reader = RunReader(store.read, ref)
        for owner in ref.owners:
            for kind in reader.kinds_of(owner):
                table = reader.rows_in(owner, kind, Ranges.everything())
                if table is not None:
                    found.setdefault((owner, kind), []).append((ref.step, table))
    last = soft[-1].step + 1
    for part in changes:
        table = pa.Table.from_batches([part.batch])
        found.setdefault((part.owner, part.kind), []).append((last, table))
    return [
        _part(owner, kind, dated, pipeline)
        for owner in pipeline.nodes
        for (of, kind), dated in found.items()
        if of == owner
    ]


def _part(owner: str, kind: str, dated: list[Dated], pipeline: Pipeline) -> RunPart:
    rows = combined(newest(dated))
    return RunPart(
        owner, kind, rows, due_rows(rows, pipeline.nodes[owner].declarations.dated_cells)
    )


def stage(
    staged: dict[str, pa.RecordBatch],
    pipeline: Pipeline,
    files: AttemptFiles,
    report: TaskReport,
    *,
    uncheckpointed: bool,
) -> None:
    """Add the productions for sinks and for later readers. Small ones also go into the report."""
    sinks = pipeline.sink_streams
    small = {name for name, batch in staged.items() if batch.nbytes <= INLINE_BYTES}
    unstaged = small & (set(sinks) if uncheckpointed else set(pipeline.weak_only))
    parts = {name: RunPart(name, OUTPUT, batch) for name, batch in staged.items()}
    for_sinks = {name for name in parts if name in sinks and name not in unstaged}
    report.outputs = files.add(
        "outputs/",
        [parts[name] for name in parts if name in for_sinks],
        most_packed=files.most_packed_outputs if for_sinks <= small else -1,
    )
    report.retained = files.add(
        "streams/", [of for name, of in parts.items() if name in pipeline.retained]
    )
    for name in small & set(sinks):
        results = report.unstaged if name in unstaged else report.inline_outputs
        results[name] = staged[name].serialize().to_pybytes()


def drop_soft_files(plan: StepPlan, layer: int, worker: int, store: Store) -> None:
    """Delete the soft files of a worker up to the last checkpoint. No step needs them any more."""
    folder = soft_folder(store, layer, worker)
    for name in store.list(folder):
        if int(name.removeprefix(folder).partition("-")[0]) <= plan.checkpoint:
            store.delete(name)
