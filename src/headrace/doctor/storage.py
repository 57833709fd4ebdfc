"""Looks at a storage: whether it keeps its promises, what its calls cost, and what is in it."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator

from headrace.doctor.findings import Finding, failed
from headrace.errors import HeadraceError
from headrace.observe.observer import PipelineObserver
from headrace.observe.watching import shown_location
from headrace.storage.base import Store
from headrace.storage.probe import FOLDER, check_creates

#: How often each kind of call is measured.
_ROUNDS = 7
#: A step waits for one create. Beyond this, fewer checkpoints help more than anything else.
_SLOW_MS = 100
_BYTES = 4_096


def of_storage(
    open_it: Callable[[], Store],
    nonce: str,
    clock_us: Callable[[], int],
    timer: Callable[[], float],
) -> Iterator[Finding]:
    """Yield what is found of a storage. Files are made for it in ``probes/``, and removed.

    Args:
        open_it: opens the storage.
        nonce: a name that nobody else uses.
        clock_us: the wall clock, in microseconds.
        timer: seconds that never go back.
    """
    try:
        store = open_it()
        check_creates(store, nonce)
    except HeadraceError as error:
        yield failed("storage", error)
        return
    place = shown_location(store.location)
    yield Finding("storage", "ok", f"{place} creates a name once, and reads back what was written")
    try:
        yield _costs(place, costs_of(store, nonce, timer))
        yield _content(place, store, clock_us())
    except HeadraceError as error:
        yield failed("storage", error)


def costs_of(store: Store, nonce: str, timer: Callable[[], float]) -> dict[str, float]:
    """Return the median time of each kind of call, in milliseconds."""
    data, took = b"x" * _BYTES, dict[str, list[float]]()

    def measured(what: str, call: Callable[[], object]) -> None:
        begun = timer()
        call()
        took.setdefault(what, []).append((timer() - begun) * 1e3)

    for number in range(_ROUNDS):
        name = f"{FOLDER}{nonce}-cost-{number}"
        measured("create", lambda name=name: store.create(name, data))  # type: ignore[misc]
        measured("read", lambda name=name: store.read(name))  # type: ignore[misc]
        measured("list", lambda: store.list(FOLDER))
        measured("delete", lambda name=name: store.delete(name))  # type: ignore[misc]
    return {what: statistics.median(times) for what, times in took.items()}


def _costs(place: str, costs: dict[str, float]) -> Finding:
    text = ", ".join(f"{what} {ms:.1f} ms" for what, ms in costs.items())
    text = f"{text} ({place}); a step waits for one create"
    facts = {f"{what}_ms": ms for what, ms in costs.items()}
    if costs["create"] > _SLOW_MS:
        remedy = "take fewer checkpoints (checkpoint_steps=), or a storage that is nearer"
        return Finding("storage costs", "warning", text, remedy, facts)
    return Finding("storage costs", "ok", text, facts=facts)


def _content(place: str, store: Store, now_us: int) -> Finding:
    """Say which pipeline is there, and who runs it."""
    picture = PipelineObserver(store, 1).look(now_us)
    if picture is None:
        return Finding("pipeline", "ok", f"there is none in {place} yet", facts={"pipeline": None})
    leader = picture.leader
    driven_by = f"run by {leader.where}" if leader.state == "leads" else "nobody runs it"
    text = f"{picture.pipeline}, step {picture.step}, {driven_by}"
    facts = {"pipeline": picture.pipeline, "step": picture.step, "leader": leader.state}
    return Finding("pipeline", "ok", text, facts=facts)
