"""Bugs that are planted on purpose, one at a time, to see whether the tests find them.

Each is a patch in ``patches/``, of the kind that people have really made in systems like this one.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Bug:
    """A planted bug.

    Attributes:
        name: of its patch.
        what: what is wrong with it planted.
        finder: the tests that must find it, as pytest is told; they are run until one fails.
        with_spark: whether they start Spark.
    """

    name: str
    what: str
    finder: str
    with_spark: bool = False


BUGS = [
    Bug("arrival_order", "records are applied in the order in which parcels arrive",
        "tests/step/test_equivalence.py"),
    Bug("state_cached_by_step", "soft state is valid by its step's number, not by what it stands for",
        "tests/step/test_soft_state.py"),
    Bug("epoch_object", "an epoch is claimed by an object of its own, not by a committed step",
        "tests/ledger/test_interleavings.py"),
    Bug("deletion_without_boundary", "manifests are deleted before a boundary above them is durable",
        "tests/coordinator/test_clean_up.py tests/coordinator/test_upkeep.py tests/crashpoints"),
    Bug("mixed_attempts", "a step is adopted although consumers have read different attempts",
        "tests/coordinator/test_adoption.py"),
    Bug("own_watermark_only", "a worker takes the output watermark of one producer for that of all",
        "tests/step/test_equivalence.py"),
    Bug("chained_behind_a_hold", "a computation is chained behind a producer that may hold its watermark",
        "tests/step/test_holds.py tests/step/test_timelines.py"),
    Bug("reachable_run_deleted", "a run is deleted that a retained manifest still reaches",
        "tests/coordinator/test_clean_up.py tests/coordinator/test_upkeep.py tests/checkpoints"),
    Bug("batch_id_trusted", "the number of a batch is trusted although the query's checkpoint was deleted",
        "tests/spark/test_borders.py", with_spark=True),
    Bug("integer_bins", "facts of bins are carried across a split by their number",
        "tests/driven/test_moving.py tests/migration/test_correctness.py"),
    Bug("replay_clock", "a step is computed again with another clock reading",
        "tests/light/test_light_steps.py"),
    Bug("lost_reply", "a commit whose reply was lost is taken for not committed",
        "tests/ledger/test_log.py"),
    Bug("taken_is_mine", "a commit whose name is taken is taken for committed",
        "tests/ledger/test_log.py tests/ledger/test_interleavings.py"),
    Bug("sweep_too_early", "leftovers of a step are swept before its manifest exists",
        "tests/ledger/test_log.py tests/coordinator/test_upkeep.py"),
    Bug("no_fencing", "a writer does not look whether its predecessor is still there",
        "tests/ledger/test_interleavings.py"),
    Bug("no_checksum", "blocks are not compared with their checksums",
        "tests/state/test_runs.py"),
    Bug("no_digest_comparison", "a step that was computed again is not compared with what was recorded",
        "tests/light/test_light_steps.py"),
    Bug("tail_off_by_one", "what was read ahead goes on one step too late",
        "tests/driven/test_moving.py tests/migration/test_correctness.py"),
    Bug("timer_at_the_watermark", "a timer at the watermark itself does not fire",
        "tests/step/test_equivalence.py"),
    Bug("late_by_todays_watermark", "lateness is judged by the watermark of this very step",
        "tests/step/test_equivalence.py"),
    Bug("command_twice", "refused commands are not counted as answered",
        "tests/change/test_commands.py tests/migration/test_commands.py"),
    Bug("given_is_received", "what a sink was given counts as received",
        "tests/coordinator/test_outbox.py tests/crashpoints"),
    Bug("soft_state_of_failed_try", "soft state that a failed try has changed is used by the next one",
        "tests/step/test_soft_state.py tests/step/test_equivalence.py"),
    Bug("old_soft_files", "bins that were let go are read again without what others have left since",
        "tests/light/test_light_steps.py"),
    Bug("slice_of_loaded_bins", "a slice is written whole without the bins that are not in memory",
        "tests/step/test_slices.py"),
    Bug("filter_trusted", "a Bloom filter that says 'perhaps' is taken for a duplicate",
        "tests/step/test_record_ids.py"),
    Bug("inbox_ghost", "a producer does not look whether its batch's name was cleaned away",
        "tests/sources/test_inbox_interleavings.py"),
    Bug("sources_told_too_early", "sources forget input that no checkpoint has yet",
        "tests/light/test_light_steps.py"),
    Bug("unstaged_at_checkpoint", "a checkpoint lets go of results that no sink has received",
        "tests/light/test_light_steps.py"),
    Bug("directory_of_another", "a directory that is there is taken for durable, whoever made it",
        "tests/power"),
    Bug("read_back_unsynced", "a name whose sync has failed is taken for durable when it is read back",
        "tests/power"),
    Bug("batch_not_settled", "a step names a batch whose name power loss may still take away",
        "tests/power/test_inbox.py"),
]  # fmt: skip

BY_NAME = {bug.name: bug for bug in BUGS}
