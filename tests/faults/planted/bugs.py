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
        finder: the tests that must find it, as pytest is told; they are run until one fails. Those of the
            soak are left out if it does not ask for them.
        control: what is switched off, if the bug is a negative control: a protection that is gone, without
            which the suite must fail, or it would show nothing.
        with_spark: whether the tests start Spark.
    """

    name: str
    what: str
    finder: str
    control: str = ""
    with_spark: bool = False


BUGS = [
    Bug(
        "arrival_order",
        "records are applied in the order in which parcels arrive",
        "tests/property/steps/test_equivalence.py -k whatever_order_they_arrive",
    ),
    Bug(
        "state_cached_by_step",
        "soft state is valid by its step's number, not by what it stands for",
        "tests/machine/steps/test_soft_state.py -k never_committed",
    ),
    Bug(
        "epoch_object",
        "an epoch is claimed by an object of its own, not by a committed step",
        "tests/faults/interleavings/test_ledger.py -k schedule",
    ),
    Bug(
        "deletion_without_boundary",
        "what lies below the next boundary is deleted before that is durable",
        "tests/faults/crashpoints -k any_operation",
        control="boundary of deletions",
    ),
    Bug(
        "mixed_attempts",
        "a step is adopted although consumers have read different attempts",
        "tests/machine/coordinator/test_adoption.py -k conflict",
    ),
    Bug(
        "own_watermark_only",
        "a worker takes its own output watermark for that of all",
        "tests/machine/steps/test_holds.py::test_one_keys_hold_holds_for_all_keys_of_all_workers",
    ),
    Bug(
        "chained_behind_a_hold",
        "a computation is chained behind a producer that may hold its watermark",
        "tests/machine/steps/test_holds.py::test_one_keys_hold_holds_for_all_keys_of_all_workers",
    ),
    Bug(
        "reachable_run_deleted",
        "a run is deleted that a retained manifest still reaches",
        "tests/machine/coordinator/test_clean_up.py -k age_wants_them",
    ),
    Bug(
        "pack_deleted_at_the_boundary",
        "a manifest is deleted although a file in it is needed",
        "tests/unit/ledger/test_packing.py",
    ),
    Bug(
        "pack_of_an_older_step_deleted",
        "a manifest is deleted although an older step that is kept needs a file in it",
        "tests/unit/ledger/test_packing.py",
    ),
    Bug(
        "cleaning_starts_above_what_is_there",
        "manifests are deleted while older ones are there that an earlier driver could not delete",
        "tests/unit/ledger/test_packing.py -k in_their_order",
    ),
    Bug(
        "batch_id_trusted",
        "the number of a batch is trusted although the query's checkpoint was deleted",
        "tests/spark/test_borders.py -k deleted_checkpoint",
        with_spark=True,
    ),
    Bug(
        "integer_bins",
        "facts of bins are carried across a split by their number",
        "tests/machine/driven/test_migrations.py -k split_and_merged",
    ),
    Bug(
        "replay_clock",
        "a step is computed again with another clock reading",
        "tests/machine/uncheckpointed/test_steps.py -k clock",
    ),
    Bug(
        "lost_reply",
        "a commit whose reply was lost is taken for not committed",
        "tests/unit/ledger/test_ledger.py -k reply_was_lost",
    ),
    Bug(
        "sent_again_the_same",
        "what is sent again after no reply is what was sent before",
        "tests/faults/interleavings/test_ledger.py -k repeated_after_all_was_cleaned",
    ),
    Bug(
        "taken_is_mine",
        "a commit whose name is taken is taken for committed",
        "tests/faults/interleavings/test_ledger.py -k paused_anywhere_is_fenced",
    ),
    Bug(
        "sweep_too_early",
        "leftovers of a step are swept before its manifest exists",
        "tests/machine/coordinator/test_storage_stays_small.py -k about_to_be_committed",
    ),
    Bug(
        "no_fencing",
        "a writer does not look whether its predecessor is still there",
        "tests/faults/interleavings/test_ledger.py -k paused_anywhere_is_fenced",
        control="fencing",
    ),
    Bug(
        "no_checksum",
        "blocks are not compared with their checksums",
        "tests/unit/runfiles/test_run_files.py -k another_value",
        control="checksums",
    ),
    Bug(
        "no_digest_comparison",
        "a step that was computed again is not compared with what was recorded",
        "tests/machine/uncheckpointed/test_steps.py -k not_deterministic_is_found_out",
        control="comparison of digests",
    ),
    Bug(
        "tail_off_by_one",
        "what was read ahead goes on one step too late",
        "tests/machine/driven/test_migrations.py -k wrote_last",
    ),
    Bug(
        "timer_at_the_watermark",
        "a timer at the watermark itself does not fire",
        "tests/machine/steps/test_timers.py -k reaches_it",
    ),
    Bug(
        "late_by_todays_watermark",
        "lateness is judged by the watermark of this very step",
        "tests/property/steps/test_equivalence.py -k oracle_says",
    ),
    Bug(
        "ended_for_ever",
        "sources whose input has ended are not asked at a start whether there is more",
        "tests/machine/end_of_input/test_reopening.py -k new_file_after_the_end",
    ),
    Bug(
        "end_while_catching_up",
        "a run that catches up takes the end of a bounded source for one",
        "tests/machine/end_of_input/test_catch_up.py -k only_caught_up_with",
    ),
    Bug(
        "asked_for_ever",
        "a run that catches up asks what it has read again and again",
        "tests/machine/end_of_input/test_catch_up.py -k not_asked_again",
    ),
    Bug(
        "fired_windows_fire_again",
        "a reopening forgets which timers the end has fired",
        "tests/machine/end_of_input/test_reopening.py -k new_file_after_the_end",
    ),
    Bug(
        "new_injector_all_late",
        "the end of the others is held against an injector that is new",
        "tests/machine/end_of_input/test_reopening.py -k new_injector",
    ),
    Bug(
        "wall_time_at_the_end",
        "wall timers produce at the end of time once the input has ended",
        "tests/machine/end_of_input/test_event_times_at_the_ends.py -k after_the_end_is_kept",
    ),
    Bug(
        "late_by_the_end",
        "what wall timers produce after the end of the input is late by that end",
        "tests/machine/end_of_input/test_event_times_at_the_ends.py -k after_the_end_is_kept",
    ),
    Bug(
        "wall_time_by_the_clock",
        "wall timers produce at the clock's time while no watermark is known",
        "tests/machine/end_of_input/test_event_times_at_the_ends.py -k watermark_is_unknown",
    ),
    Bug(
        "announcement_forgotten",
        "a partition that was announced is forgotten until its first record",
        "tests/unit/sources/test_partitions.py -k has_registered_holds",
    ),
    Bug(
        "command_twice",
        "refused commands are not counted as answered",
        "tests/machine/changes/test_commands.py -k refused_is_answered_once",
    ),
    Bug(
        "given_is_received",
        "what a sink was given counts as received",
        "tests/machine/coordinator/test_outbox.py -k as_a_list",
    ),
    Bug(
        "soft_state_of_failed_try",
        "soft state that a failed try has changed is used by the next one",
        "tests/machine/steps/test_soft_state.py -k before_it_was_killed",
    ),
    Bug(
        "old_soft_files",
        "bins that were let go are read again without what others have left since",
        "tests/machine/uncheckpointed/test_steps.py -k what_others_left",
    ),
    Bug(
        "slice_of_loaded_bins",
        "a slice is written whole without the bins that are not in memory",
        "tests/machine/steps/test_slices_of_state.py -k add_up_to",
    ),
    Bug(
        "filter_trusted",
        "a Bloom filter that says 'perhaps' is taken for a duplicate",
        "tests/machine/steps/test_record_ids.py -k readers_agree",
    ),
    Bug(
        "inbox_ghost",
        "a producer does not look whether its batch's name was cleaned away",
        "tests/unit/sources/test_inbox.py -k stalls_past_a_clean_up",
    ),
    Bug(
        "inbox_own_batch_deleted",
        "a slow producer whose batch was read meanwhile takes it for a ghost",
        "tests/unit/sources/test_inbox.py -k slower_than_the_pipeline",
    ),
    Bug(
        "inbox_sent_again_the_same",
        "a batch that comes back after its clean-up is one that others follow",
        "tests/unit/sources/test_inbox.py -k sent_again_after",
    ),
    Bug(
        "inbox_forgets_what_it_sent",
        "a batch of which nothing was told is appended once more, as another",
        "tests/unit/sources/test_inbox.py -k sent_again_past",
    ),
    Bug(
        "inbox_old_list",
        "a producer takes a batch that was cleaned away for the newest of its name",
        "tests/unit/sources/test_inbox.py -k opens_no_producer",
    ),
    Bug(
        "inbox_keeps_one",
        "of a producer's batches only the last stays, and a slow one misses the other",
        "tests/unit/sources/test_inbox.py -k slower_than_the_pipeline",
    ),
    Bug(
        "waits_for_ever",
        "a driver that was overtaken while it waits for input is never told",
        "tests/unit/sources/test_inbox.py -k overtaken_while_it_waits",
    ),
    Bug(
        "sources_told_too_early",
        "sources forget input that no checkpoint has yet",
        "tests/machine/uncheckpointed/test_steps.py -k inbox_keeps",
    ),
    Bug(
        "unstaged_at_checkpoint",
        "a checkpoint lets go of results that no sink has received",
        "tests/machine/uncheckpointed/test_steps.py -k no_sink_has_received_at",
    ),
    Bug(
        "made_again_swept",
        "results that were made again are swept before sinks have received them",
        "tests/machine/uncheckpointed/test_steps.py -k sweep",
    ),
    Bug(
        "made_again_in_part",
        "of a step that was made again only what is in no file is staged",
        "tests/machine/uncheckpointed/test_results.py -k another",
    ),
    Bug(
        "moved_while_behind",
        "state moves while it is paused, and not all of it is in storage",
        "tests/machine/uncheckpointed/test_pausing.py -k moves",
    ),
    Bug(
        "newest_files",
        "a task reads the newest files of state, whatever step it computes",
        "tests/machine/steps/test_soft_state.py -k computed_late",
    ),
    Bug(
        "claims_on_the_newest",
        "who stands by claims after any step, not after the one it decided by",
        "tests/machine/leadership/test_jobs_that_stand_by.py -k no_sign_of_life",
    ),
    Bug(
        "sweep_trusts_the_list",
        "a clean-up goes by a list that may lag, so names go out of order",
        "tests/unit/sources/test_inbox.py -k list_does_not_show_yet",
    ),
    Bug(
        "light_while_moving",
        "steps are light while state moves, which is read from storage",
        "tests/machine/uncheckpointed/test_steps.py -k state_moves_with",
    ),
    Bug(
        "upgraded_twice",
        "a row that was upgraded still says the older version",
        "tests/machine/changes/test_state_schemas.py -k when_they_are_read",
    ),
    Bug(
        "both_read",
        "a driver that hands over keeps its sources open",
        "tests/machine/leadership/test_handover.py -k one_driver_at_a_time",
    ),
    Bug(
        "created_in_place",
        "a name is there before its bytes are",
        "tests/faults/kills/test_kills_at_system_calls.py -m soak",
    ),
    Bug(
        "directory_of_another",
        "a directory that is there is taken for durable, whoever made it",
        "tests/faults/power",
    ),
    Bug(
        "read_back_unsynced",
        "a name whose sync has failed is taken for durable when it is read back",
        "tests/faults/power",
    ),
    Bug(
        "claim_not_settled",
        "a claim follows a step whose name power loss may still take away",
        "tests/faults/power",
    ),
    Bug(
        "delivers_overtaken",
        "a driver delivers its queue without a look who leads",
        "tests/machine/steps/test_overtaken_drivers.py",
    ),
    Bug(
        "intent_of_other_code",
        "other code finishes, under its id, a step that was shown",
        "tests/machine/steps/test_code_that_changed.py -k shown",
    ),
    Bug(
        "future_counts",
        "a partition that was active in the future is never idle",
        "tests/machine/coordinator/test_wrong_clocks.py -k idle",
    ),
    Bug(
        "ahead_for_ever",
        "the age of a base counts from a reading that was in the future",
        "tests/machine/coordinator/test_wrong_clocks.py -k clean_up",
    ),
    Bug(
        "no_task_timeout",
        "a task that takes too long is not asked to end",
        "tests/machine/errors -k never_ends_is_ended",
    ),
    Bug(
        "hung_sink_waited_for",
        "a sink that never returns is waited for",
        "tests/machine/errors -k sink_that_never_returns",
    ),
    Bug(
        "batch_not_settled",
        "a step names a batch whose name power loss may still take away",
        "tests/faults/power/test_inbox.py",
    ),
    Bug(
        "zset_not_consolidated",
        "equal rows of a step are not added up before they are joined",
        "tests/property/zsets/test_operators.py -k inner-join",
    ),
    Bug(
        "zset_join_meets_the_new_side_twice",
        "new rows of both sides of a join meet twice, since both are taken in first",
        "tests/property/zsets/test_operators.py -k inner-join",
    ),
    Bug(
        "zset_weights_clamped",
        "a weight below zero is kept as zero, so that the insertion after it counts twice",
        "tests/property/zsets/test_state.py -k add_up_to_0",
    ),
    Bug(
        "seeds_counted_twice",
        "an added view receives the changes of rows that it is given in the same step, too",
        "tests/property/zsets/test_views_added_with_rows.py -k its_query",
    ),
    Bug(
        "zset_null_equals_null",
        "a join pairs rows whose keys are null",
        "tests/property/zsets/test_operators.py -k inner-join",
    ),
    Bug(
        "transactions_torn",
        "a transaction goes with its end, whether or not its rows are there",
        "tests/property/zsets/test_transactions.py -k for_all_tables",
    ),
    Bug(
        "transactions_by_arrival",
        "of rows of one key, that of the transaction counts which comes last by its hash",
        "tests/property/zsets/test_transactions.py -k the_last_counts_whichever",
    ),
    Bug(
        "transactions_overtake",
        "a transaction does not wait for those that ended before it",
        "tests/property/zsets/test_transactions.py -k in_the_order_of_their_ends",
    ),
    Bug(
        "late_by_the_new_watermark",
        "a row of a table is late by the watermark of its own step",
        "tests/property/zsets/test_lateness.py -k late_rows_are_apart",
    ),
    Bug(
        "rows_let_go_too_early",
        "rows are let go at their time, though others may still meet them for a while",
        "tests/property/zsets/test_lateness.py -k late_rows_are_apart",
    ),
    Bug(
        "view_back_with_old_rows",
        "a view that is restored has the state from before it was removed",
        "tests/property/zsets/test_views_added_with_rows.py -k comes_back",
    ),
    Bug(
        "zset_ties_by_arrival",
        "of rows that are equal in what they are ordered by, the first that came goes on",
        "tests/property/zsets/test_operators.py -k all_columns_say_which",
    ),
    Bug(
        "zset_group_never_deleted",
        "a row of which nothing is left stays in the state",
        "tests/property/zsets/test_operators.py -k group-by-floats",
    ),
    Bug(
        "zset_decimal_by_float",
        "decimals are added up as floats",
        "tests/property/zsets/test_operators.py -k group-linear",
    ),
]

BY_NAME = {bug.name: bug for bug in BUGS}
CONTROLS = [bug for bug in BUGS if bug.control]
