"""What a ``StatefulProcessor`` declares: its ``init`` is called once while the pipeline is built."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.errors import PySparkRuntimeError
from pyspark.sql.streaming.stateful_processor import (
    ListState,
    MapState,
    StatefulProcessor,
    StatefulProcessorHandle,
    ValueState,
)

from headrace.computation.declarations import (
    Declaration,
)
from headrace.computation.declarations import (
    ListState as DeclaredList,
)
from headrace.computation.declarations import (
    MapState as DeclaredMap,
)
from headrace.computation.declarations import (
    ValueState as DeclaredValue,
)
from headrace.errors import PipelineError
from headrace.eventtime.domains import WALL_TIME
from headrace.spark.ddl import ddl_of, struct_of_schema
from headrace.spark.states import Converters, small_fields, stored_state
from headrace.spark.values import StructConverter


class _Undeclared:
    """Refuses every use: there is no key in ``init``."""

    def __init__(self, name: str) -> None:
        self._name = name

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise PySparkRuntimeError(
            "[STATEFUL_PROCESSOR_CANNOT_PERFORM_OPERATION_WITH_INVALID_HANDLE_STATE] state "
            f"{self._name!r} was used in init(), where there is no key"
        )


class _UndeclaredValue(_Undeclared, ValueState):
    exists = get = update = clear = _Undeclared._refuse


class _UndeclaredList(_Undeclared, ListState):
    exists = get = put = appendValue = appendList = clear = _Undeclared._refuse


class _UndeclaredMap(_Undeclared, MapState):
    exists = getValue = containsKey = updateValue = iterator = keys = values = removeKey = clear = (
        _Undeclared._refuse
    )


class DeclaringHandle(StatefulProcessorHandle):
    """The handle that ``init`` gets while the pipeline is built: it notes what is declared.

    Args:
        time_mode: the processor's time mode, in lower case.

    Attributes:
        found: the declarations, by the names that Headrace has for them.
        removed: the names of state that ``init`` wants deleted.
        converters: the converters of its values. Declarations and converters share their types.
    """

    def __init__(self, time_mode: str) -> None:
        self._mode = time_mode
        self.found: dict[str, Declaration] = {}
        self._written: dict[str, list[str]] = {}
        self.removed: list[str] = []
        self.converters: Converters = {}

    def getValueState(
        self,
        stateName: str,
        schema: Any,
        ttlDurationMs: int | None = None,
    ) -> ValueState:
        kind = self._kind(stateName, "value", schema)
        ttl = self._ttl(stateName, ttlDurationMs)
        self._declare(stateName, DeclaredValue(kind, ttl=ttl, ttl_domain=WALL_TIME))
        return _UndeclaredValue(stateName)

    def getListState(
        self,
        stateName: str,
        schema: Any,
        ttlDurationMs: int | None = None,
    ) -> ListState:
        kind = self._kind(stateName, "value", schema)
        ttl = self._ttl(stateName, ttlDurationMs)
        self._declare(stateName, DeclaredList(kind, ttl=ttl, ttl_domain=WALL_TIME))
        return _UndeclaredList(stateName)

    def getMapState(
        self,
        stateName: str,
        userKeySchema: Any,
        valueSchema: Any,
        ttlDurationMs: int | None = None,
    ) -> MapState:
        keys = self._kind(stateName, "key", userKeySchema)
        kind = self._kind(stateName, "value", valueSchema)
        ttl = self._ttl(stateName, ttlDurationMs)
        self._declare(stateName, DeclaredMap(keys, kind, ttl=ttl, ttl_domain=WALL_TIME))
        return _UndeclaredMap(stateName)

    def registerTimer(self, expiryTimestampMs: int) -> None:
        _Undeclared("timers")._refuse()

    def deleteTimer(self, expiryTimestampMs: int) -> None:
        _Undeclared("timers")._refuse()

    def listTimers(self) -> Iterator[int]:
        _Undeclared("timers")._refuse()
        return iter(())

    def deleteIfExists(self, stateName: str) -> None:
        self.removed.append(stored_state(stateName))

    def _kind(self, name: str, what: str, schema: Any) -> Any:
        place = f"state {name!r}"
        struct = struct_of_schema(schema, place)
        made = self.converters[name, what] = StructConverter(struct, place), small_fields(struct)
        self._written.setdefault(name, []).append(ddl_of(struct))
        return made[0].kind

    def _ttl(self, name: str, ttl_ms: int | None) -> str | None:
        if not ttl_ms:
            return None
        if ttl_ms < 0:
            raise PipelineError(
                f"state {name!r} has a time to live of {ttl_ms} ms, which is negative",
                remedy="give ttlDurationMs above 0, or none",
            )
        if self._mode != "processingtime":
            raise PipelineError(
                "[STATEFUL_PROCESSOR_INCORRECT_TIME_MODE_TO_ASSIGN_TTL] "
                f"state {name!r} has a time to live, which only the time mode processingTime has",
                remedy='pass timeMode="processingTime", or leave ttlDurationMs out',
            )
        return f"{ttl_ms}ms"

    def _declare(self, name: str, declared: Declaration) -> None:
        if name.startswith("$"):
            raise PipelineError(
                f"state {name!r} begins with $, which Spark keeps for itself",
                remedy="give it another name",
            )
        stored = stored_state(name)
        if stored in self.found:
            raise PipelineError(
                f"[STATEFUL_PROCESSOR_DUPLICATE_STATE_VARIABLE_DEFINED] state {name!r} is declared twice",
                remedy="give each state variable a name of its own",
            )
        declared.written = " → ".join(self._written[name])
        self.found[stored] = declared


def declared_by(processor: StatefulProcessor, time_mode: str) -> DeclaringHandle:
    """Return what a processor declares in ``init``."""
    handle = DeclaringHandle(time_mode)
    processor.init(handle)
    processor.close()
    return handle
