"""Where undelivered outputs come from is kept with them, and storages of before it are readable."""

from __future__ import annotations

from typing import Any

import msgspec

from headrace.keyspace.planner import contiguous
from headrace.ledger.folding import fold
from headrace.ledger.head import Head
from headrace.ledger.manifest import MANIFESTS, Manifest
from headrace.ledger.records import Division, Origin
from headrace.runfiles.format import FileRef

NEW = {"delivery", "delivered", "waits_for"}
NEW_IN_HEAD = {"origins", "delivered", "waits_for", "done", "done_before"}


def manifest(step: int, **more: Any) -> Manifest:
    return Manifest(
        pipeline="p",
        step=step,
        epoch=1,
        attempt=0,
        nonce="n",
        predecessor="",
        claim=step == 0,
        clock_us=0,
        seed=0,
        **more,
    )


def file(step: int) -> FileRef:
    return FileRef(f"outputs/{step}", 5, "", step, 1, 0, ["n.out"], "")


def division(start: int, end: int) -> dict[str, Division]:
    return {"in": Division(start, end, end - start, 0, False)}


def folded(*manifests: Manifest) -> Head:
    layout = contiguous(1, 1).to_wire()
    head = fold(None, manifest(0, layout=layout), "d0")
    for item in manifests:
        head = fold(head, item, f"d{item.step}")
    return head


def test_undelivered_outputs_keep_the_input_that_they_came_from_until_they_are_delivered() -> None:
    first = manifest(1, divisions=division(0, 4), outputs=[file(1)], delivery=1)
    again = manifest(3, divisions=division(4, 9), outputs=[file(3)], delivery=2, delivered={"s": 1})
    head = folded(first, manifest(2), again)
    assert head.origin_of(1) == Origin(1, {"in": (0, 4)})
    assert head.origin_of(3) == Origin(2, {"in": (4, 9)}), "it was first planned as step 2"
    assert (head.done, head.delivered) == (2, {"s": 1})
    head = fold(head, manifest(4, released=1, delivered={"s": 3, "t": 1}), "d4")
    assert sorted(head.origins) == sorted(head.unreleased) == [3]
    assert head.delivered == {"s": 3, "t": 1}


def test_intents_may_go_once_the_boundary_has_passed_their_steps() -> None:
    head = folded(*[manifest(n, delivery=n, divisions=division(n, n + 1)) for n in (1, 2, 3)])
    based = fold(head, manifest(4, base=head, delivery=4), "d4")
    assert (based.settled, based.done, based.done_before) == (0, 4, {4: 3})
    assert fold(based, manifest(5, boundary=4), "d5").settled == 3


def test_a_manifest_of_an_older_version_delivers_its_outputs_under_their_step() -> None:
    head = folded(manifest(1, outputs=[file(1)], divisions=division(0, 4)))
    body = msgspec.to_builtins(manifest(2, base=head, outputs=[file(2)], divisions=division(4, 6)))
    for name in NEW:
        del body[name]
    for name in NEW_IN_HEAD:
        del body["base"][name]
    older = msgspec.convert(body, Manifest, strict=False)
    older = MANIFESTS.decode(MANIFESTS.encode(older), "manifests/2")
    after = fold(None, older, "d2")
    assert after.origin_of(1) == Origin(1), "nobody knows its input any more"
    assert after.origin_of(2) == Origin(2, {"in": (4, 6)})
