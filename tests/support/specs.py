"""Hypothesis strategies: random pipelines, random inputs with disorder, random ways to run them."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from tests.property.oracle.model import NodeSpec, Spec


@st.composite
def specs(draw: st.DrawFn) -> Spec:
    """A pipeline of up to four computations in up to four layers, with its input."""
    names = ["first", "second"][: draw(st.integers(1, 2))]
    record = st.tuples(st.integers(-3, 12), st.integers(0, 5), st.integers(0, 60))
    injectors = {}
    for name in names:
        records = draw(st.lists(record, max_size=60))
        # event time advances, with disorder of up to 60 against it
        injectors[name] = [(a, b, t + i * 3) for i, (a, b, t) in enumerate(records)]
    streams: list[tuple[str, bool]] = [(name, False) for name in names]
    nodes = []
    for number in range(draw(st.integers(1, 4))):
        chosen = draw(st.lists(st.sampled_from(streams), min_size=1, max_size=3, unique=True))
        inputs = [
            (name, draw(st.sampled_from(["a", "b", "same"] if produced else ["a", "b"])))
            for name, produced in chosen
        ]
        delay = draw(st.one_of(st.none(), st.integers(0, 40)))
        node = NodeSpec(
            name=f"node{number}",
            inputs=inputs,
            delay=delay,
            echo=draw(st.booleans()),
            chain=draw(st.sampled_from([0, 0, 1, 15])) if delay is not None else 0,
        )
        node.columnar = node.chain == 0 and draw(st.booleans())
        nodes.append(node)
        streams.append((node.name, True))
    used = {name for node in nodes for name, _ in node.inputs}
    injectors = {name: records for name, records in injectors.items() if name in used}
    return Spec(
        injectors, draw(st.integers(0, 50)), draw(st.sampled_from([1, 3, 7, 20, 100])), nodes
    )


WAYS: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {
        "workers": st.sampled_from([1, 2, 4]),
        "bins": st.sampled_from([1, 16, 1024]),
        "exchange": st.sampled_from(["driver", "host", "shuffle"]),
        "seed": st.integers(0, 1000),
        "processes": st.sampled_from([1, 3]),
        "base_every": st.sampled_from([2, 64]),
        "slices": st.sampled_from([2, 16]),
        "slice_every": st.sampled_from([1, 2]),
        "retain_steps": st.sampled_from([1, 16]),
        "cached_bytes": st.sampled_from([512, 2_048, 1 << 30]),
        "packed_bytes": st.sampled_from([0, 1_500, 256 << 10]),
    }
)
