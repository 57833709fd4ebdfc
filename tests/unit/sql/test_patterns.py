"""Regular expressions of Java's that RE2 may take differently are refused, each with its reason."""

from __future__ import annotations

import pytest

from headrace.errors import PipelineError, SqlError
from headrace.sql.expressions.patterns import Pattern, part_of

REFUSED = {
    r"(a)\1": "it has",
    r"\bword": "it has",
    r"\p{L}+": "it has",
    "(?i)a": "a flag",
    "(?=a)b": "look ahead",
    "(?<name>a)": "a name",
    "a*+": "gives nothing back",
    "(a*)*": "may be empty",
    "(a)+": "a group that is read is repeated",
    "^*": "a place is repeated",
    "a$b": "stands before something else",
    "(a$)": "stands in a group",
    "[a[b]]": "a class has",
    "[a&&b]": "a class has",
    "[]": "a class is empty",
    "[z-a]": "ends before it begins",
    "a{2000}": "more than 1000 times",
    "*a": "stands behind nothing",
    "(a": "a ( without its )",
    "a)": "a ) without its (",
    "a\\": "ends too early",
}


@pytest.mark.parametrize("pattern", REFUSED)
def test_a_pattern_that_the_two_may_take_differently_is_refused(pattern: str) -> None:
    with pytest.raises(PipelineError) as found:
        Pattern(pattern)
    assert REFUSED[pattern] in found.value.what


def test_a_pattern_says_whether_it_may_match_nothing() -> None:
    assert not Pattern("a|b+").may_be_empty
    assert Pattern("a|b*").may_be_empty
    assert Pattern("a?b?").may_be_empty
    assert Pattern("^").may_be_empty
    assert not Pattern("(x?)y").may_be_empty


def test_part_zero_of_a_text_is_an_error() -> None:
    assert part_of("a/b", "/", -1) == "b"
    with pytest.raises(SqlError) as found:
        part_of("a/b", "/", 0)
    assert found.value.condition == "INVALID_INDEX_OF_ZERO"
