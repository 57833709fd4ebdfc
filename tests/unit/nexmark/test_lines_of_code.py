"""Lines of code are counted as the page says."""

from __future__ import annotations

from benchmarks.nexmark.lines import lines_of, table


def test_lines_are_those_of_what_a_query_names_without_texts_and_blanks() -> None:
    assert lines_of("q2", "migratable") == 4, "a constant, the head, and two lines"
    assert lines_of("q2", "native") == 4
    assert lines_of("q6", "backwards") is None


def test_that_a_function_imports_something_counts_for_nothing() -> None:
    assert lines_of("q18", "native") == 6, "an import is at the top of a module, for ours"


def test_what_a_function_has_from_elsewhere_counts_too() -> None:
    by_hand, joined = lines_of("q6", "native"), lines_of("q9", "native")
    assert by_hand is not None and joined is not None
    assert by_hand > joined + 10, "the class that keeps prices"


def test_what_queries_share_counts_for_each_of_them() -> None:
    own = {query: lines for query, lines, _ in table()}
    winners = own["q9"]
    assert winners is not None and winners > 40
    for query in ("q4", "q6"):
        lines = own[query]
        assert lines is not None and lines > 40
