"""PySpark's state variables, timers and handle, over the state of the key at hand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pyspark.errors import PySparkRuntimeError
from pyspark.sql.streaming.stateful_processor import (
    ListState,
    MapState,
    StatefulProcessorHandle,
    ValueState,
)
from pyspark.sql.types import (
    ByteType,
    DataType,
    FloatType,
    IntegerType,
    Row,
    ShortType,
    StructType,
)

from headrace.computation.grouped import KeyTimers
from headrace.computation.handles import ListHandle, MapHandle, ValueHandle
from headrace.spark.byte_order import unsafe_row
from headrace.spark.timer_times import timer_micros
from headrace.spark.values import StructConverter

_SMALL: dict[type[DataType], int] = {ByteType: 1, ShortType: 2, IntegerType: 4, FloatType: 4}


#: The converters of state, by its name and "key" or "value", with the sizes of their fields.
Converters = dict[tuple[str, str], tuple[StructConverter, list[int]]]


class KeyState:
    """Whether a key is at hand. State can be used only then.

    Attributes:
        key: the key at hand; None outside of handlers.
        in_init: whether ``init`` runs, where state is declared.
    """

    def __init__(self) -> None:
        self.key: Any = None
        self.in_init = False

    def check(self, name: str) -> None:
        """Check that a key is at hand.

        Raises:
            PySparkRuntimeError: if none is.
        """
        if self.key is None:
            raise PySparkRuntimeError(
                f"state {name!r} was used without a key: it has a value only in handleInputRows, "
                "handleExpiredTimer and handleInitialState"
            )


class BoundValueState(ValueState):
    """A ``ValueState`` of the key at hand."""

    def __init__(
        self, name: str, handle: ValueHandle[Any], values: StructConverter, at: KeyState
    ) -> None:
        self._name, self._handle, self._values, self._at = name, handle, values, at

    def exists(self) -> bool:
        self._at.check(self._name)
        return self._handle.exists

    def get(self) -> tuple[Any, ...] | None:
        self._at.check(self._name)
        kept = self._handle.value
        return None if kept is None else self._values.values(kept)

    def update(self, newValue: Any) -> None:
        self._at.check(self._name)
        self._handle.value = self._values.keep_struct(newValue)

    def clear(self) -> None:
        self._at.check(self._name)
        self._handle.clear()


class BoundListState(ListState):
    """A ``ListState`` of the key at hand."""

    def __init__(
        self, name: str, handle: ListHandle[Any], values: StructConverter, at: KeyState
    ) -> None:
        self._name, self._handle, self._values, self._at = name, handle, values, at

    def exists(self) -> bool:
        self._at.check(self._name)
        return len(self._handle) > 0

    def get(self) -> Iterator[tuple[Any, ...]]:
        self._at.check(self._name)
        return iter([self._values.values(kept) for kept in self._handle])

    def put(self, newState: Any) -> None:
        self._at.check(self._name)
        self._handle.replace(self._kept(newState))

    def appendValue(self, newState: Any) -> None:
        self._at.check(self._name)
        self._handle.append(self._values.keep_struct(newState))

    def appendList(self, newState: Any) -> None:
        self._at.check(self._name)
        self._handle.extend(self._kept(newState))

    def clear(self) -> None:
        self._at.check(self._name)
        self._handle.clear()

    def _kept(self, elements: Sequence[Any]) -> list[Any]:
        kept = [self._values.keep_struct(element) for element in elements]
        if not kept:
            raise PySparkRuntimeError(
                f"[ILLEGAL_STATE_STORE_VALUE.EMPTY_LIST_VALUE] list state {self._name!r} was given "
                "an empty list: use clear()"
            )
        return kept


class BoundMapState(MapState):
    """A ``MapState`` of the key at hand. Iterates in Spark's order; see :mod:`.byte_order`."""

    def __init__(
        self,
        name: str,
        handle: MapHandle[Any, Any],
        keys: StructConverter,
        values: StructConverter,
        at: KeyState,
        small: Sequence[int],
    ) -> None:
        self._name, self._handle, self._at = name, handle, at
        self._keys, self._values, self._small = keys, values, small

    def exists(self) -> bool:
        self._at.check(self._name)
        return len(self._handle) > 0

    def getValue(self, key: Any) -> Row | None:
        self._at.check(self._name)
        kept = self._handle.get(self._keys.keep_struct(key))
        return None if kept is None else self._values.give_row(kept)

    def containsKey(self, key: Any) -> bool:
        self._at.check(self._name)
        return self._keys.keep_struct(key) in self._handle

    def updateValue(self, key: Any, value: Any) -> None:
        self._at.check(self._name)
        self._handle[self._keys.keep_struct(key)] = self._values.keep_struct(value)

    def iterator(self) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
        return iter([(self._keys.values(k), self._values.values(v)) for k, v in self._ordered()])

    def keys(self) -> Iterator[tuple[Any, ...]]:
        return iter([self._keys.values(key) for key, _ in self._ordered()])

    def values(self) -> Iterator[tuple[Any, ...]]:
        return iter([self._values.values(value) for _, value in self._ordered()])

    def removeKey(self, key: Any) -> None:
        self._at.check(self._name)
        self._handle.pop(self._keys.keep_struct(key), None)

    def clear(self) -> None:
        self._at.check(self._name)
        self._handle.clear()

    def _ordered(self) -> list[tuple[Any, Any]]:
        self._at.check(self._name)
        entries = list(self._handle.items())
        entries.sort(key=self._place)
        return entries

    def _place(self, entry: tuple[Any, Any]) -> bytes:
        key = entry[0]
        return unsafe_row([getattr(key, n) for n in key.__struct_fields__], small=self._small)


def small_fields(schema: StructType) -> list[int]:
    """Return for each field how many bytes of its word in an ``UnsafeRow`` are used."""
    return [_SMALL.get(type(field.dataType), 8) for field in schema.fields]


class BoundHandle(StatefulProcessorHandle):
    """A ``StatefulProcessorHandle`` over the state of the key at hand.

    Args:
        handles: the handles of the declared state, by the names that Headrace has for it.
        timers: the timers of the key at hand.
        time_mode: the processor's time mode, in lower case.
        at: whether a key is at hand.
        converters: the converters of what is declared.
    """

    def __init__(
        self,
        handles: Mapping[str, Any],
        timers: KeyTimers,
        time_mode: str,
        at: KeyState,
        converters: Converters,
    ) -> None:
        self._handles, self._timers, self._mode, self._at = handles, timers, time_mode, at
        self._converters = converters

    def getValueState(
        self,
        stateName: str,
        schema: Any,
        ttlDurationMs: int | None = None,
    ) -> ValueState:
        handle = self._declared(stateName)
        values, _ = self._converters[stateName, "value"]
        return BoundValueState(stateName, handle, values, self._at)

    def getListState(
        self,
        stateName: str,
        schema: Any,
        ttlDurationMs: int | None = None,
    ) -> ListState:
        handle = self._declared(stateName)
        values, _ = self._converters[stateName, "value"]
        return BoundListState(stateName, handle, values, self._at)

    def getMapState(
        self,
        stateName: str,
        userKeySchema: Any,
        valueSchema: Any,
        ttlDurationMs: int | None = None,
    ) -> MapState:
        handle = self._declared(stateName)
        keys, small = self._converters[stateName, "key"]
        values, _ = self._converters[stateName, "value"]
        return BoundMapState(stateName, handle, keys, values, self._at, small)

    def registerTimer(self, expiryTimestampMs: int) -> None:
        self._check_timers()
        self._timers.set(_micros(expiryTimestampMs))

    def deleteTimer(self, expiryTimestampMs: int) -> None:
        self._check_timers()
        self._timers.cancel(_micros(expiryTimestampMs))

    def listTimers(self) -> Iterator[int]:
        self._check_timers()
        found = [time // 1_000 for time in self._timers.times()]
        # Spark lists them by their bytes in its store, which are little-endian.
        return iter(sorted(found, key=lambda ms: ms.to_bytes(8, "little", signed=True)))

    def deleteIfExists(self, stateName: str) -> None:
        if not self._at.in_init:
            raise _invalid("delete a state variable")

    def _declared(self, name: str) -> Any:
        if not self._at.in_init:
            raise _invalid(f"create state variable {name!r}")
        return self._handles[stored_state(name)]

    def _check_timers(self) -> None:
        if self._mode == "none":
            raise PySparkRuntimeError(
                "[STATEFUL_PROCESSOR_CANNOT_PERFORM_OPERATION_WITH_INVALID_TIME_MODE] timers need "
                "the time mode processingTime or eventTime, and this one is none"
            )
        self._at.check("timers")


def _invalid(what: str) -> PySparkRuntimeError:
    return PySparkRuntimeError(
        "[STATEFUL_PROCESSOR_CANNOT_PERFORM_OPERATION_WITH_INVALID_HANDLE_STATE] cannot "
        f"{what} outside of init()"
    )


def _micros(expiry_ms: Any) -> int:
    if type(expiry_ms) is int:
        return timer_micros(expiry_ms)
    if isinstance(expiry_ms, bool) or not hasattr(expiry_ms, "__index__"):
        raise TypeError(
            f"{expiry_ms!r} is no time of a timer: give integer milliseconds since 1970"
        )
    return timer_micros(int(expiry_ms.__index__()))


def stored_state(name: str) -> str:
    """Return the name that Headrace has for a state variable. No name of its own begins with _."""
    return f"state{name}" if name.startswith("_") else name
