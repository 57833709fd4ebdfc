"""The story of a run, that is told when something goes wrong: its newest events, a line each."""

from __future__ import annotations

from headrace.coordinator.messages import Commanded, Committed, Event, Offered, TryBroke, TryEnded

_NEWEST = 100


def continued(story: list[str], event: Event) -> list[str]:
    """Return a story with what happened next."""
    return [*story[1 - _NEWEST :], _line(event)]


def _line(event: Event) -> str:
    """Return an event in a line."""
    match event:
        case Committed():
            return f"committed {event.head.step}"
        case TryEnded():
            return f"try ended with {len(event.reports)} reports"
        case TryBroke():
            return f"try broke: {event.why.splitlines()[0] if event.why else ''}"
        case Commanded():
            return f"commanded {event.answer.text}"
        case Offered():
            return f"offered {[n for n, o in event.offers.items() if o]} at {event.now_us}"
        case _:
            return type(event).__name__.lower()
