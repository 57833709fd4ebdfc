"""Headrace: stateful stream processing on Apache Spark, exactly once, with state that can move.

This package exports what most programs need:

- :class:`Pipeline` builds a pipeline.
- :class:`Computation` and :class:`ColumnarComputation` are what you subclass to write its code.
- ``sources``, ``sinks`` and ``ops`` hold ready-made parts, and ``zsets`` relational ones.
- :func:`run` runs a pipeline, and ``testing`` drives one step by step in a test.

ARCHITECTURE.md explains how the library works inside.
"""

from typing import TYPE_CHECKING

from headrace import messages, ops, policies, sinks, sources, sql, testing, zsets
from headrace.checkpoints.opening import open_state
from headrace.checkpoints.planned_views import planned_views
from headrace.computation.batches import FiredBatch, KeyedBatch, Keys, StepBatches
from headrace.computation.columnar import (
    BatchContext,
    ColumnarComputation,
    StepComputation,
    TableState,
)
from headrace.computation.computation import Computation
from headrace.computation.context import Context
from headrace.computation.counters import Counter
from headrace.computation.declarations import (
    Codec,
    ListState,
    MapState,
    Output,
    Posted,
    Removed,
    Timer,
    ValueState,
)
from headrace.computation.patterns import TwoInput, state_machine
from headrace.computation.per_worker import PerWorker
from headrace.computation.records import Fired, Record
from headrace.computation.zset_state import ZSetState
from headrace.control.migrations import Migration
from headrace.coordinator.settings import Settings
from headrace.driver.change import Change
from headrace.errors.deprecated import Renamed
from headrace.eventtime.domains import EVENT_TIME, WALL_TIME, TimeDomain
from headrace.eventtime.watermark import (
    Frontier,
    ascending,
    bounded_delay,
    by_function,
    exact,
)
from headrace.job import Job, run
from headrace.keyspace.hashing import hash_key
from headrace.ledger.heartbeats import HeartbeatSettings
from headrace.migration.rounds import all_at_once, batched, fluid
from headrace.migration.sharding import contiguous, dynamic, fixed
from headrace.pipeline import Computed, Hashed, Node, Pipeline, Salt, Stream
from headrace.pipeline.retention import Keep, keep
from headrace.pipeline.sifting import BadRecord
from headrace.pipeline.source import Limit
from headrace.protocol.step_summary import StepSummary
from headrace.session import spark_session

__version__ = "0.1.0"

_RENAMED = Renamed(Lease="HeartbeatSettings")

__all__ = [
    "EVENT_TIME",
    "WALL_TIME",
    "BadRecord",
    "BatchContext",
    "Change",
    "Codec",
    "ColumnarComputation",
    "Computation",
    "Computed",
    "Context",
    "Counter",
    "Fired",
    "FiredBatch",
    "Frontier",
    "Hashed",
    "HeartbeatSettings",
    "Job",
    "Keep",
    "KeyedBatch",
    "Keys",
    "Limit",
    "ListState",
    "MapState",
    "Migration",
    "Node",
    "Output",
    "PerWorker",
    "Pipeline",
    "Posted",
    "Record",
    "Removed",
    "Salt",
    "Settings",
    "StepBatches",
    "StepComputation",
    "StepSummary",
    "Stream",
    "TableState",
    "TimeDomain",
    "Timer",
    "TwoInput",
    "ValueState",
    "ZSetState",
    "all_at_once",
    "ascending",
    "batched",
    "bounded_delay",
    "by_function",
    "contiguous",
    "dynamic",
    "exact",
    "fixed",
    "fluid",
    "hash_key",
    "keep",
    "messages",
    "open_state",
    "ops",
    "planned_views",
    "policies",
    "run",
    "sinks",
    "sources",
    "spark",
    "spark_session",
    "sql",
    "state_machine",
    "testing",
    "zsets",
]

if TYPE_CHECKING:
    from headrace.spark import Door

    Lease = HeartbeatSettings
    spark: Door
else:
    from headrace import spark

    def __getattr__(name: str) -> object:
        return _RENAMED.attribute(name, globals())
