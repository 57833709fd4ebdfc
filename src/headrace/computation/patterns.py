"""Two patterns that many computations follow (after Megaphone): two inputs, and a state machine.

Both are ordinary computations underneath, with the same guarantees. With ``Pipeline.compute(...,
ordered=True)`` records come in order of event time, as in Megaphone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from headrace.computation.computation import Computation, InputStream, UserCode
from headrace.computation.declarations import Declaration, Output, Posted, ValueState
from headrace.computation.inspection import source_place
from headrace.computation.records import Record
from headrace.errors import PipelineError


class TwoInput(Computation):
    """Base class of user code that reads two streams, each with a handler of its own.

    The first stream of ``keys=`` is the left one, the second is the right one::

        class Join(hr.TwoInput):
            name = hr.ValueState(str)
            out = hr.Output(str)

            def process_left(self, ctx, record):
                self.name.value = record.value.name

            def process_right(self, ctx, record):
                ctx.produce("out", f"{self.name.value} bids {record.value.price}")

        p.compute("join", Join(), keys={people: "id", bids: "bidder"})

    Posts of a subclass that declares :class:`headrace.Posted` arrive in ``process_post``.
    """

    def declare(self, inputs: Sequence[InputStream]) -> Mapping[str, Declaration | Output]:
        """Note which stream is the left one and which the right one.

        Raises:
            PipelineError: for a number of streams other than two, for two streams of one name, and
                if a handler for one of them or for posts is missing.
        """
        if len(inputs) != 2:
            raise PipelineError(
                f"{type(self).__name__} is a TwoInput, and was given {len(inputs)} streams",
                place=source_place(self),
                remedy="name two streams in keys=, the left one first",
            )
        self._check_handlers()
        self._left, self._right = (stream.name for stream in inputs)
        if self._left == self._right:
            raise PipelineError(
                f"{type(self).__name__} is a TwoInput, and both its streams are called {self._left!r}",
                place=source_place(self),
                remedy="their handlers could not be distinguished: let one go through a computation",
            )
        return super().declare(inputs)

    def _check_handlers(self) -> None:
        cls = type(self)
        posts = [name for name in dir(cls) if isinstance(getattr(cls, name, None), Posted)]
        needed = ["process_left", "process_right", *(["process_post"] if posts else [])]
        missing = [name for name in needed if getattr(cls, name) is getattr(TwoInput, name)]
        if missing:
            why = f" and declares posts {posts[0]!r}" if missing == ["process_post"] else ""
            raise PipelineError(
                f"{cls.__name__} is a TwoInput{why}, and has no {missing[0]}",
                place=source_place(self),
                remedy=f"define {missing[0]}(self, ctx, record)",
            )

    def process_record(self, ctx: Any, record: Record) -> None:
        """Pass a record to the handler of its stream."""
        if record.stream == self._left:
            self.process_left(ctx, record)
        elif record.stream == self._right:
            self.process_right(ctx, record)
        else:
            self.process_post(ctx, record)

    def process_left(self, ctx: Any, record: Record) -> None:
        """Process one record of the first stream."""
        raise NotImplementedError

    def process_right(self, ctx: Any, record: Record) -> None:
        """Process one record of the second stream."""
        raise NotImplementedError

    def process_post(self, ctx: Any, record: Record) -> None:
        """Process one record that the key has sent to itself."""
        raise NotImplementedError


#: (key, value, state) → (new state, outputs). The state is None if the key has no state yet; a new
#: state of None deletes it.
Fold = Callable[[Any, Any, Any], tuple[Any, Iterable[Any]]]


class StateMachine(Computation):
    """The computation that :func:`state_machine` returns."""

    def __init__(self, fold: Fold, state: Any, output: Any) -> None:
        self._fold = fold
        self._kinds = (state, output)

    def declare(self, inputs: Sequence[InputStream]) -> Mapping[str, Declaration | Output]:
        """Declare the machine's state and its output."""
        state, output = self._kinds
        return {"machine": ValueState(state), "out": Output(output)}

    def process_record(self, ctx: Any, record: Record) -> None:
        """Fold one record into the state of its key."""
        held: Any = self.machine  # type: ignore[attr-defined]
        state, outputs = self._fold(ctx.key, record.value, held.value)
        if state is not None:
            held.value = state
        elif held.exists:
            held.clear()
        for value in outputs:
            ctx.produce("out", value)


def state_machine(fold: Fold, *, state: Any, output: Any) -> UserCode:
    """Return a computation that folds each record into the state of its key.

    ::

        def session(key, event, state):
            seen = (state or 0) + 1
            return (None, [seen]) if event.last else (seen, [])

        sessions = hr.state_machine(session, state=int, output=int)
        p.compute("sessions", sessions, keys={events: "user"})

    Args:
        fold: ``(key, value, state) -> (state, outputs)``. ``state`` is None for a key that has
            none. Returning None deletes the state: the machine is done. The outputs get the
            record's event time.
        state: the state's type, as for :class:`headrace.ValueState`.
        output: the outputs' type, as for :class:`headrace.Output`. The stream is called ``out``.
    """
    return StateMachine(fold, state, output)
