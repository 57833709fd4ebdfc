"""What a type checker must refuse: each line that ends in ``# refused``, and no other."""

from __future__ import annotations

import msgspec

import headrace as hr


class Hit(msgspec.Struct):
    page: str


class Visits(hr.Computation):
    last = hr.ValueState(str)
    total = hr.ValueState(int, default=0)
    users = hr.ListState(str)
    counts = hr.MapState(str, int)
    over = hr.Timer(hr.EVENT_TIME)

    def process_record(self, ctx: hr.Context, record: hr.Record[Hit]) -> None:
        self.counts["a"] = "wrong"  # refused
        self.counts[1] = 1  # refused
        self.counts.update({"a": "wrong"})  # refused
        self.total.value = "wrong"  # refused
        self.total.valeu = 1  # refused
        self.users.append(1)  # refused
        self.users[0] = 1  # refused
        self.over.set("tomorrow")  # refused
        self.over.set(1, tag=2)  # refused
        length: int = self.last.value  # refused
        ctx.produce(1, length)  # refused
        print(record.value.pages)  # refused
        print(record.time)  # refused


def pipeline() -> hr.Pipeline:
    p = hr.Pipeline("visits")
    hits = p.inject("hits", "hits.jsonl")  # refused
    p.compute("visits", Visits, keys={hits: "page"})  # refused
    p.sink("totals", hits, print)  # refused
    return p
