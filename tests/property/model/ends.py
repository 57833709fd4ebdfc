"""What ends, runs that catch up, reopenings and new injectors come to: added to the model, as plainly."""

from __future__ import annotations

from collections.abc import Collection

from tests.property.model.model import Model
from tests.property.model.plain import END, InjectorSpec, Outside, Part


class EndingModel(Model):
    """The model of ``tests/property/model``, with runs that end in one way or another."""

    def catch_up(self) -> None:
        """Do all that there is to be done now, and declare no end."""
        self.ends = False
        while self.step():
            pass
        self.ends = True

    def drain(self) -> None:
        for outside in self.outside.values():
            outside.ended = True
        while self.step():
            pass

    def go_on(self, injector: str) -> None:
        """An injector that was said to have ended has more to come."""
        outside = self.outside[injector]
        outside.ended = False
        for part in outside.parts.values():
            part.ended_at = None

    def more(self) -> list[str]:
        """Return the injectors whose end a step has seen, and which go on all the same."""
        return [
            name for name, outside in self.outside.items() if outside.final and not outside.ended
        ]

    def reopen(self, injectors: Collection[str]) -> None:
        for name in injectors:
            outside = self.outside[name]
            outside.final, outside.low = False, outside.reached
            for part in outside.parts.values():
                part.ended = False
        self.begin()

    def add(self, spec: InjectorSpec) -> None:
        self.outside[spec.name] = Outside(spec, {name: Part() for name in spec.expect})

    def begin(self) -> None:
        """Let those go on that have no end of their input any more: after what the end has fired."""
        fed = {name for name, outside in self.outside.items() if not outside.final}
        for node in self.nodes:
            if any(stream.partition(".")[0] in fed for stream, _ in node.inputs):
                fed.add(node.name)
                if self.marks[node.name] == END:
                    self.marks[node.name] = self.reached[node.name]
