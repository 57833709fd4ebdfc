"""A drawing has every part and every stream of a pipeline once, and is valid whatever the names are."""

from __future__ import annotations

import itertools
import re
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.errors import UserCodeError
from headrace.pipeline.drawing.parts import arrows_of, parts_of
from headrace.pipeline.drawing.placement import Placement

SVG = "{http://www.w3.org/2000/svg}"


class Item(msgspec.Struct):
    key: str
    at: int


class Reads(hr.Computation):
    """Reads any number of inputs with one handler."""

    seen = hr.ValueState(int, default=0)
    later = hr.Timer(hr.EVENT_TIME)
    out = hr.Output(Item)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        self.seen.value += 1

    def process_timer(self, ctx: hr.Context, timer: hr.Fired) -> None: ...


@st.composite
def pipelines(draw: st.DrawFn) -> hr.Pipeline:
    """Any small pipeline: each computation reads some of the streams before it."""
    pipeline = hr.Pipeline("any")
    streams: list[Any] = []
    for number in range(draw(st.integers(1, 3))):
        ids = draw(st.sampled_from([None, "key"]))
        source = hr.sources.Iterable([Item("a", 1)], Item, event_time="at")
        streams.append(pipeline.inject(f"in{number}", source, ids=ids))
    for number in range(draw(st.integers(1, 7))):
        chosen = draw(st.lists(st.sampled_from(streams), min_size=1, max_size=3, unique_by=id))
        late = draw(st.sampled_from(["drop", "side"]))
        node = pipeline.compute(f"c{number}", Reads(), keys=dict.fromkeys(chosen, "key"), late=late)
        streams.append(node["out"])
        if draw(st.booleans()):
            pipeline.sink(f"c{number}", node["out"], hr.sinks.Console())
    return pipeline


def drawn(svg: str) -> tuple[list[str], list[str]]:
    """Return the tooltips of the boxes and of the arrows of a drawing."""
    boxes, arrows = [], []
    for group in ET.fromstring(svg).iter(f"{SVG}g"):
        title = group.findtext(f"{SVG}title") or ""
        (arrows if group.get("class") == "arrow" else boxes).append(title)
    return boxes, arrows


@settings(max_examples=60, deadline=None)
@given(pipelines())
def test_every_part_and_every_stream_is_drawn_once(pipeline: hr.Pipeline) -> None:
    boxes, arrows = drawn(pipeline.svg())
    names = Counter(f"injector {name}" for name in pipeline.injectors)
    names += Counter(f"computation {name}" for name in pipeline.nodes)
    names += Counter(f"sink {name}" for name in pipeline.sinks)
    assert Counter(box.partition(";")[0] for box in boxes) == names
    reads = sum(len(node.inputs) for node in pipeline.nodes.values()) + len(pipeline.sinks)
    assert len(arrows) == reads
    for name, node in pipeline.nodes.items():
        for stream in node.inputs:
            producer = pipeline.producer(stream)
            source = (
                f"injector {stream.owner}" if producer is None else f"computation {producer.name}"
            )
            assert any(one.startswith(f"{source} → computation {name}") for one in arrows)


@settings(max_examples=60, deadline=None)
@given(pipelines())
def test_the_text_has_a_line_for_each_injector_and_each_arrow(pipeline: hr.Pipeline) -> None:
    first, *lines = pipeline.describe().splitlines()
    assert first.startswith("any: ")
    reads = sum(len(node.inputs) for node in pipeline.nodes.values()) + len(pipeline.sinks)
    assert sum("▶" in line for line in lines) == reads
    assert len(lines) == reads + len(pipeline.injectors)
    described = [line for line in lines if "(above)" not in line]
    for name in [*pipeline.nodes, *pipeline.injectors]:
        own = [
            line for line in described if re.search(rf"(^|▶) +{re.escape(name)}  \((?!sink)", line)
        ]
        assert len(own) == 1, f"{name} is described once"


@settings(max_examples=60, deadline=None)
@given(pipelines())
def test_boxes_do_not_overlap_and_are_inside_of_the_drawing(pipeline: hr.Pipeline) -> None:
    root = ET.fromstring(pipeline.svg())
    width, height = float(root.get("width", "0")), float(root.get("height", "0"))
    boxes = [
        tuple(float(rect.get(side, "")) for side in ("x", "y", "width", "height"))
        for group in root.iter(f"{SVG}g")
        for rect in group.iter(f"{SVG}rect")
    ]
    for x, y, w, h in boxes:
        assert x >= 0 and y >= 0 and x + w <= width and y + h <= height
    for (x, y, w, h), (x2, y2, w2, h2) in itertools.combinations(boxes, 2):
        assert x + w <= x2 or x2 + w2 <= x or y + h <= y2 or y2 + h2 <= y


@settings(max_examples=60, deadline=None)
@given(pipelines())
def test_arrows_lead_to_the_right_and_pass_no_box(pipeline: hr.Pipeline) -> None:
    parts, arrows = parts_of(pipeline), arrows_of(pipeline)
    placed = Placement([part.id for part in parts], [(one.source, one.target) for one in arrows])
    at = {spot: number for number, column in enumerate(placed.columns) for spot in column}
    assert sum(map(len, placed.columns)) == len(at), "each has one place"
    for path in placed.paths:
        columns = [at[spot] for spot in path]
        assert columns == list(range(columns[0], columns[-1] + 1)), "each column on the way has one"


def test_sweeps_uncross_what_can_be_uncrossed() -> None:
    ids = ["a", "b", "c", "x", "y", "z"]
    placed = Placement(ids, [("a", "z"), ("b", "y"), ("c", "x")])
    assert placed.crossings() == 0


@pytest.mark.parametrize(
    "name",
    ["<script>alert(1)</script>", "a&b", '"quoted"', "]]>", "\x1b[31m", "\ufffe", "\x00", "日本語"],
)
def test_names_are_escaped(name: str) -> None:
    pipeline = hr.Pipeline("named")
    source = hr.sources.Iterable([Item("a", 1)], Item, event_time="at")
    computation = Reads()
    computation.__class__ = type(name.replace("\x00", "\x01"), (Reads,), {})
    pipeline.compute("it", computation, keys={pipeline.inject("in", source): "key"})
    svg = pipeline.svg()
    boxes, _ = drawn(svg)
    assert len(boxes) == 2
    assert "<script" not in svg and "\x1b" not in svg
    assert "\x1b" not in pipeline.describe() and len(pipeline.describe().splitlines()) == 3


def test_a_pipeline_reads_as_a_tree() -> None:
    pipeline = hr.Pipeline("visits")
    source = hr.sources.Iterable([Item("a", 1)], Item, event_time="at")
    hits = pipeline.inject("hits", source)
    first = pipeline.compute("first", Reads(), keys={hits: "key"}, late="side")
    both = pipeline.compute("both", Reads(), keys={first["late"]: "key", hits: ("key", "at")[:1]})
    pipeline.sink("out", both, hr.sinks.Console(), weak=True)
    assert pipeline.describe() == (
        "visits: 1 injector, 2 computations, 1 sink, 2 layers\n"
        "  hits  (an iterable)\n"
        "  ├─by key─▶ first  (Reads; seen: value; later: timer in event time; late: side)\n"
        "  │  └─late by key─▶ both  (Reads; seen: value; later: timer in event time)\n"
        "  │     └─▶ out  (sink, Console; weak)\n"
        "  └─by key─▶ both (above)"
    )
    assert repr(pipeline) == "<Pipeline visits: 1 injector, 2 computations, 1 sink, 2 layers>"


def test_a_notebook_shows_a_job_and_a_checkpoint_with_what_they_keep(tmp_path: Path) -> None:
    pipeline = hr.Pipeline("kept")
    source = hr.sources.Iterable([Item("a", 1), Item("b", 2)], Item, event_time="at")
    pipeline.compute("it", Reads(), keys={pipeline.inject("in", source): "key"})
    job = hr.run(pipeline, storage=tmp_path / "st", runner="inline")
    assert "not started" in job.describe()
    with job:
        job.drain()
    assert job.describe().startswith(f"kept on {tmp_path / 'st'}: ended: drained\n")
    assert re.search(r"it +2 +0 +end +seen: value int", job.describe())
    assert pipeline.describe() in job.describe()
    html = job._repr_html_()
    assert "<svg" in html and "<td>seen: value int" in html
    ET.fromstring(f"<all>{html}</all>")
    with hr.open_state(tmp_path / "st") as checkpoint:
        assert re.search(r"it +2 +0 +end +seen: value int", checkpoint.describe())
        ET.fromstring(f"<all>{checkpoint._repr_html_()}</all>")


class Fails(Reads):
    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        raise ValueError("<b>no</b>")


def test_a_job_that_has_failed_says_why_and_what_it_says_is_escaped(tmp_path: Path) -> None:
    pipeline = hr.Pipeline("failing")
    source = hr.sources.Iterable([Item("a", 1)], Item, event_time="at")
    pipeline.compute("it", Fails(), keys={pipeline.inject("in", source): "key"})
    with (
        pytest.raises(UserCodeError),
        hr.run(pipeline, storage=tmp_path / "st", runner="inline") as job,
    ):
        job.drain()
    assert "failed: [HR102]" in job.describe().splitlines()[0]
    assert "<b>" not in job._repr_html_()
