"""Random layouts: bins of any depth, with any owners."""

from __future__ import annotations

from hypothesis import strategies as st

from headrace.keyspace.layout import Layout


def layouts(*, splits: int = 12, workers: int = 5) -> st.SearchStrategy[Layout]:
    """Random layouts for Hypothesis, which makes them smaller where a test fails."""

    @st.composite
    def draw_one(draw: st.DrawFn) -> Layout:
        bits = [0]
        for _ in range(draw(st.integers(0, splits))):
            at = draw(st.integers(0, len(bits) - 1))
            bits[at : at + 1] = [bits[at] + 1, bits[at] + 1]
        count = draw(st.integers(1, workers))
        owner = st.integers(0, count - 1)
        return Layout(bits, draw(st.lists(owner, min_size=len(bits), max_size=len(bits))), count)

    return draw_one()
