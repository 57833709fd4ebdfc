"""A pipeline as text: a tree from each injector. Each arrow of the graph is one of its lines."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.errors.printable import one_line
from headrace.pipeline.drawing.parts import Arrow, Part, arrows_of, parts_of
from headrace.pipeline.graph import PipelineGraph


def text_of(graph: PipelineGraph) -> str:
    """Return a pipeline as text. A part that several streams reach has its readers shown once."""
    parts = {part.id: part for part in parts_of(graph)}
    arrows: dict[str, list[Arrow]] = {}
    for arrow in arrows_of(graph):
        arrows.setdefault(arrow.source, []).append(arrow)
    shown: set[str] = set()
    lines = [_headline(graph)]
    for part in parts.values():
        if part.kind == "injector":
            lines.append(f"  {_line(part)}")
            lines += [f"  {line}" for line in _below(part.id, parts, arrows, shown)]
    return "\n".join(map(one_line, lines))


def _below(
    source: str, parts: dict[str, Part], arrows: dict[str, list[Arrow]], shown: set[str]
) -> Iterator[str]:
    """Yield the lines of everything that reads the streams of a part."""
    own = arrows.get(source, [])
    for arrow in own:
        last = arrow is own[-1]
        target = parts[arrow.target]
        label = f"{arrow.label}─" if arrow.label else ""
        again = target.id in shown
        line = f"{target.name} (above)" if again else _line(target)
        yield f"{'└' if last else '├'}─{label}▶ {line}"
        if not again:
            shown.add(target.id)
            for below in _below(target.id, parts, arrows, shown):
                yield f"{' ' if last else '│'}  {below}"


def _line(part: Part) -> str:
    what = f"sink, {part.what}" if part.kind == "sink" else part.what
    return f"{part.name}  ({'; '.join([what, *part.details])})"


def _headline(graph: PipelineGraph) -> str:
    counts = [
        (len(graph.injectors), "injector"),
        (len(graph.nodes), "computation"),
        (len(graph.sinks), "sink"),
        (graph.layers, "layer"),
    ]
    return f"{graph.name}: " + ", ".join(
        f"{count} {name}{'' if count == 1 else 's'}" for count, name in counts
    )
