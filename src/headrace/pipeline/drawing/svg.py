"""A pipeline as a picture (SVG): injectors on the left, sinks on the right."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from html import escape

from headrace.errors.printable import one_line
from headrace.pipeline.drawing.parts import Arrow, Part, arrows_of, parts_of
from headrace.pipeline.drawing.placement import Placement, Spot
from headrace.pipeline.graph import PipelineGraph

#: Sizes in pixels.
_LINE, _PAD, _GAP, _MARGIN, _FONT = 17, 10, 26, 12, 13
_CHARACTER, _LABEL_CHARACTER = 7.9, 6.7
_MIN_COLUMN_GAP = 56
#: Most characters of a line in a box, and of a label. A tooltip has the rest.
_MOST = 44
_NOT_IN_XML = {0xFFFE: "\\ufffe", 0xFFFF: "\\uffff"}
_FILLS = {"injector": "#dbeafe", "computation": "#ffffff", "sink": "#dcfce7"}
_STROKES = {"injector": "#2563eb", "computation": "#475569", "sink": "#16a34a"}


class _Box:
    """A box, or a waypoint: then it has neither lines nor a size."""

    def __init__(self, lines: Sequence[str] = ()) -> None:
        self.lines = lines
        self.width = max(map(_cells, lines), default=0) * _CHARACTER + 2 * _PAD if lines else 0.0
        self.height = len(lines) * _LINE + 2 * _PAD if lines else 0.0
        self.x = 0.0
        self.y = 0.0

    @property
    def middle(self) -> float:
        """Its middle, from top to bottom."""
        return self.y + self.height / 2


def svg_of(graph: PipelineGraph) -> str:
    """Return a pipeline as an SVG element. Names are escaped, and cut if they are long."""
    parts, arrows = parts_of(graph), arrows_of(graph)
    placement = Placement([part.id for part in parts], [(one.source, one.target) for one in arrows])
    boxes: dict[Spot, _Box] = {part.id: _Box(_lines(part)) for part in parts}
    for column in placement.columns:
        for spot in column:
            boxes.setdefault(spot, _Box())
    width, height = _place(placement, boxes, arrows)
    ends = _ends(placement, boxes)
    elements = [
        _arrow(one, path, boxes, end)
        for one, path, end in zip(arrows, placement.paths, ends, strict=True)
    ]
    elements += [_box(part, boxes[part.id]) for part in parts]
    title = _safe(_cut(graph.name))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" font-family="ui-monospace, Menlo, Consolas, '
        f'monospace" font-size="{_FONT}"><title>{title}</title>\n'
        f'<rect width="100%" height="100%" fill="#f8fafc"/>\n' + "\n".join(elements) + "\n</svg>"
    )


def _lines(part: Part) -> list[str]:
    return [_cut(line) for line in (part.name, part.what, *part.details)]


def _safe(text: str) -> str:
    """Return a text as it may stand in XML."""
    return escape(one_line(text).translate(_NOT_IN_XML))


def _cut(text: str) -> str:
    text = one_line(text)
    return text if len(text) <= _MOST else f"{text[: _MOST - 1]}…"


def _cells(text: str) -> int:
    """Return how many columns of a terminal a text takes. A box is as wide as its longest line."""
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text)


def _place(
    placement: Placement, boxes: Mapping[Spot, _Box], arrows: Sequence[Arrow]
) -> tuple[float, float]:
    """Give each box its place. Return the width and the height of the drawing."""
    heights = [
        sum(boxes[spot].height for spot in column) + _GAP * (len(column) - 1)
        for column in placement.columns
    ]
    highest = max(heights, default=0.0)
    x = float(_MARGIN)
    for number, (column, height) in enumerate(zip(placement.columns, heights, strict=True)):
        widest = max(boxes[spot].width for spot in column)
        y = _MARGIN + (highest - height) / 2
        for spot in column:
            box = boxes[spot]
            box.x, box.y = x, y
            if not box.lines:
                box.width = widest  # an arrow passes the boxes of its column straight
            y += box.height + _GAP
        x += widest + _gap_after(number, placement, arrows)
    return x - _gap_after(len(heights) - 1, placement, arrows) + _MARGIN, highest + 2 * _MARGIN


def _gap_after(number: int, placement: Placement, arrows: Sequence[Arrow]) -> float:
    """Return the space to the right of a column: labels of arrows that end there must fit."""
    if number + 1 >= len(placement.columns):
        return 0.0
    ends = set(placement.columns[number + 1])
    labels = [
        _cut(one.label)
        for one, path in zip(arrows, placement.paths, strict=True)
        if path[-1] in ends
    ]
    return max((_cells(label) * _LABEL_CHARACTER + 40 for label in labels), default=0.0) + (
        0.0 if any(labels) else _MIN_COLUMN_GAP - 40
    )


def _ends(placement: Placement, boxes: Mapping[Spot, _Box]) -> list[float]:
    """Return how far down each arrow ends. Those of one box end beside each other."""
    arriving: dict[Spot, list[int]] = {}
    for number, path in enumerate(placement.paths):
        arriving.setdefault(path[-1], []).append(number)
    ends = [0.0] * len(placement.paths)
    for spot, numbers in arriving.items():
        numbers.sort(key=lambda number: boxes[placement.paths[number][-2]].middle)
        for at, number in enumerate(numbers, start=1):
            ends[number] = boxes[spot].y + boxes[spot].height * at / (len(numbers) + 1)
    return ends


def _arrow(arrow: Arrow, path: Sequence[Spot], boxes: Mapping[Spot, _Box], at: float) -> str:
    """Return an arrow that ends ``at`` so far down."""
    first, *waypoints, last = (boxes[spot] for spot in path)
    x, y = first.x + first.width, first.middle
    elements = f"M{x:.1f} {y:.1f}"
    for box in [*waypoints, last]:
        half, to = (x + box.x) / 2, at if box is last else box.middle
        elements += f" C{half:.1f} {y:.1f} {half:.1f} {to:.1f} {box.x:.1f} {to:.1f}"
        if not box.lines:
            elements += f" H{box.x + box.width:.1f}"
        x, y = box.x + box.width, to
    end, label = last.x, _safe(_cut(arrow.label))
    tip = f"M{end - 8:.1f} {at - 4:.1f} L{end:.1f} {at:.1f} L{end - 8:.1f} {at + 4:.1f} Z"
    text = (
        f'<text x="{end - 12:.1f}" y="{at - 5:.1f}" text-anchor="end" font-size="11" '
        f'fill="#475569" stroke="#f8fafc" stroke-width="3" paint-order="stroke">{label}</text>'
    )
    whole = f"{arrow.source} → {arrow.target} {arrow.label}".strip()
    return (
        f'<g class="arrow"><title>{_safe(whole)}</title>'
        f'<path d="{elements}" fill="none" stroke="#64748b" stroke-width="1.3"/>'
        f'<path d="{tip}" fill="#64748b"/>{text if label else ""}</g>'
    )


def _box(part: Part, box: _Box) -> str:
    whole = "; ".join([f"{part.kind} {part.name}", part.what, *part.details])
    lines = "".join(_line(line, at, box) for at, line in enumerate(box.lines))
    return (
        f'<g class="{part.kind}"><title>{_safe(whole)}</title>'
        f'<rect x="{box.x:.1f}" y="{box.y:.1f}" width="{box.width:.1f}" height="{box.height:.1f}" '
        f'rx="{4 if part.kind == "computation" else 14}" fill="{_FILLS[part.kind]}" '
        f'stroke="{_STROKES[part.kind]}"/>{lines}</g>'
    )


def _line(line: str, at: int, box: _Box) -> str:
    how = 'fill="#0f172a" font-weight="bold"' if at == 0 else 'fill="#475569"'
    x, y = box.x + _PAD, box.y + _PAD + (at + 0.78) * _LINE
    return f'<text x="{x:.1f}" y="{y:.1f}" {how}>{_safe(line)}</text>'
