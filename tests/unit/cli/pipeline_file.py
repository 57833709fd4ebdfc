"""A pipeline as a file, for the command line."""

from __future__ import annotations

import msgspec

import headrace as hr


class Item(msgspec.Struct):
    key: str
    at: int


class Count(hr.Computation):
    count = hr.ValueState(int, default=0)
    out = hr.Output(int)

    def __init__(self, *, fails: bool) -> None:
        self._fails = fails

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        if self._fails:
            raise ValueError("it cannot")
        self.count.value += 1


def pipeline(*, fails: bool = False) -> hr.Pipeline:
    drawn = hr.Pipeline("counted")
    items = [Item("ab"[number % 2], number) for number in range(6)]
    stream = drawn.inject("items", hr.sources.Iterable(items, Item, event_time="at"))
    drawn.compute("count", Count(fails=fails), keys={stream: "key"})
    return drawn
