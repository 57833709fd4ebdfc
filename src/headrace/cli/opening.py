"""What "run" says before it runs: what is there already. And what its closing line has to know."""

from __future__ import annotations

import contextlib

from headrace.cli.common import NothingThere, head_of, say
from headrace.errors import HeadraceError
from headrace.observe.picture import input_of
from headrace.pipeline import Pipeline

#: What is said of a pipeline whose input was read to its end, or as far as there was any.
_READ = {
    "ended": "all of its input had been read by step {step}: checking whether there is more",
    "caught up": "all that there was had been read by step {step}: checking whether there is more",
}


def say_what_is_there(storage: str, name: str) -> None:
    """Say that a pipeline has read all of its input, before a runner takes its time to start."""
    with contextlib.suppress(HeadraceError, NothingThere):  # the run will say what is wrong
        head = head_of(storage)
        text = _READ.get(input_of(head))
        if text is not None:
            say(f"{name}  {text.format(step=head.step)}", err=True)


def dropping(pipeline: Pipeline) -> set[str]:
    """Return the computations that drop every record that they count as late.

    Operators such as windows judge lateness themselves. They process what others call late, and
    count what they drop.
    """
    return {
        name
        for name, node in pipeline.nodes.items()
        if node.late == "drop" or (node.late == "process" and node.computation.judges_late)
    }
