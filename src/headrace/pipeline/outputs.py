"""The streams that a computation produces: its outputs, side streams and posts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from headrace.errors import PipelineError
from headrace.pipeline.graph import PipelineGraph
from headrace.pipeline.nodes import Node
from headrace.pipeline.retention import Keep
from headrace.pipeline.streams import DEAD_LETTER, DeadLetter, Stream
from headrace.schema import ValueType, value_type_of


def add_outputs(pipeline: PipelineGraph, node: Node, place: str) -> None:
    """Give a computation its output streams: the declared ones, and those of its policies.

    Raises:
        PipelineError: if a side stream has the name of an output.
    """

    def add(name: str, values: ValueType, *, is_late: bool = False) -> None:
        full = f"{node.name}.{name}"
        node.outputs[name] = Stream(
            pipeline, full, values, node.key_fields, is_late=is_late, group=node.group
        )

    for name, output in node.declarations.outputs.items():
        add(name, output.value_type())
    if node.on_error == "dead_letter" and DEAD_LETTER not in node.outputs:
        add(DEAD_LETTER, value_type_of(DeadLetter))
    if node.late == "side":
        for name, source in _late_outputs(node, place):
            add(name, source.values, is_late=True)


def _late_outputs(node: Node, place: str) -> Iterator[tuple[str, Stream]]:
    for number, source in enumerate(node.inputs):
        name = node.late_output(number)
        if name in node.outputs:
            raise PipelineError(
                f"computation {node.name!r} declares an output {name!r}, which is the name of "
                "its side stream of late records",
                place=place,
                remedy="name the output otherwise",
            )
        yield name, source


def retained_of(
    node: Node, retain: Sequence[str] | Mapping[str, Keep | None], place: str
) -> dict[str, Keep | None]:
    """Return the streams to be retained, each with how much of it is kept; None for everything.

    Raises:
        PipelineError: for an output that the computation does not have, and for a bound that is not
            a :class:`Keep`.
    """
    for name in retain:
        if name not in node.outputs:
            raise PipelineError(
                f"computation {node.name!r} retains {name!r}, which it does not declare",
                place=place,
                remedy=f"its outputs are: {', '.join(node.outputs) or 'none'}",
            )
    kept = retain if isinstance(retain, Mapping) else dict.fromkeys(retain)
    for name, keep in kept.items():
        if keep is not None and not isinstance(keep, Keep):
            raise PipelineError(
                f"computation {node.name!r} retains {name!r} for {keep!r}",
                place=place,
                remedy=f'say for how long with keep(): retain={{"{name}": hr.keep("7d")}}',
            )
    return {node.outputs[name].name: keep for name, keep in kept.items()}


def add_posts(pipeline: PipelineGraph, node: Node, place: str) -> None:
    """Give a computation its streams of posts.

    Raises:
        PipelineError: if a post has the name of an input, or an ordered computation reads a stream
            twice. A record's stream could not be recognised then.
    """
    names = [stream.name for stream in node.inputs]
    for name, posted in node.declarations.posts.items():
        if name in names:
            raise PipelineError(
                f"computation {node.name!r} posts {name!r}, and reads a stream of that name",
                place=place,
                remedy="rename one of them: a record's stream says where it is from",
            )
        values = posted.value_type()
        node.posts[name] = Stream(pipeline, name, values, node.key_fields, group=node.group)
    if node.ordered and len(set(names)) < len(names):
        raise PipelineError(
            f"computation {node.name!r} is ordered, and reads a stream by two keys",
            remedy="let one computation read it by each key",
        )
