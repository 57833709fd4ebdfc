"""What the user draws: a pipeline of injectors, computations and sinks, checked as it is built.

* ``pipeline``: drawing it; ``redrawing``: what copying, removing and replacing come to.
* ``drawn``: reading what is drawn; ``identity``: what of it durable data depends on.
* ``nodes``, ``streams``, ``outputs``: what it is made of; ``keys``: by what streams are keyed.
* ``layers``: which computations run together; ``rules``, ``arguments``: what the user may say.
"""

from headrace.pipeline.builder import Pipeline
from headrace.pipeline.keys import Salt
from headrace.pipeline.nodes import Injector, Node, SinkNode
from headrace.pipeline.streams import DEAD_LETTER, DeadLetter, Stream

__all__ = [
    "DEAD_LETTER",
    "DeadLetter",
    "Injector",
    "Node",
    "Pipeline",
    "Salt",
    "SinkNode",
    "Stream",
]
