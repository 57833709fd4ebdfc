"""The head says since when a sink is slow, and since when the input waits for it."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from headrace.keyspace.layout import Layout
from headrace.ledger.folding import USUALLY_BEHIND, fold
from headrace.ledger.head import Head
from headrace.ledger.manifest import Manifest
from headrace.ledger.migrations import Moment

SINKS = ("fast", "slow")
#: Of each step: whether it has results, how many steps the slow sink receives, and who is waited for.
STEPS = st.lists(
    st.tuples(st.booleans(), st.integers(0, 3), st.sets(st.sampled_from(SINKS)), st.booleans()),
    min_size=1,
    max_size=40,
)


def manifest(step: int, **changes: object) -> Manifest:
    """Return a manifest of a step, whose clock reading is a thousand times its number."""
    layout = Layout.uniform(2, [0, 1], 2).to_wire() if step == 0 else None
    plain = Manifest("p", step, 1, 0, "n", "", False, step * 1_000 + 7, 0, layout=layout)
    return msgspec.structs.replace(plain, **changes)


@given(STEPS)
def test_the_moment_stays_as_long_as_it_is_so(
    steps: list[tuple[bool, int, set[str], bool]],
) -> None:
    head: Head | None = None
    results: list[int] = []
    received = -1
    behind: list[bool] = []
    waiting: dict[str, list[bool]] = {sink: [] for sink in SINKS}
    for step, (has_results, receives, waits_for, is_base) in enumerate(steps):
        due = [at for at in results if at > received][:receives]
        received = max([received, *due])
        results += [step] if has_results else []
        made = manifest(
            step,
            unstaged=has_results,
            delivered={"fast": step, "slow": received},
            released=received,
            waits_for=sorted(waits_for),
            base=head if is_base else None,
        )
        head = fold(head, made, "")
        behind.append(sum(at > received for at in results) > USUALLY_BEHIND)
        for sink in SINKS:
            waiting[sink].append(sink in waits_for)
        assert head.behind_since == moments({"slow": behind})
        assert head.waits_since == moments(waiting)


def moments(so: dict[str, list[bool]]) -> dict[str, Moment]:
    """Return since when each has been so without interruption, by looking at every step."""
    found = {}
    for name, each in so.items():
        first = len(each)
        while first and each[first - 1]:
            first -= 1
        if first < len(each):
            found[name] = Moment(first, first * 1_000 + 7)
    return found
