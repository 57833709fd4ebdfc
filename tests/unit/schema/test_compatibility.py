"""A difference of types passes only if every stored value decodes, and means what it is to mean."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from headrace.schema.compatibility import differences, in_words, shape_of_type
from tests.support.types_as_data import Spec, built, changed, expected, made, plain, specs, values

many = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


def read_as(value: Any, old: Spec, new: Spec) -> Any:
    """Store a value under one type, and read it under another."""
    stored = msgspec.msgpack.encode(made(value, old), order="deterministic")
    return plain(msgspec.msgpack.decode(stored, type=built(new)), new)


def told(old: Spec, new: Spec) -> list[str]:
    return differences(shape_of_type(built(old)), shape_of_type(built(new)))


def possible(spec: Spec) -> bool:
    """Whether there is such a type at all: not every union can be read back."""
    try:
        msgspec.msgpack.Decoder(built(spec))
    except TypeError:
        return False
    return True


@many
@given(st.data())
def test_what_passes_is_read_as_an_independent_oracle_says(data: st.DataObject) -> None:
    old = data.draw(specs())
    new = data.draw(st.one_of(changed(old), changed(old), specs()))
    assume(possible(old) and possible(new) and not told(old, new))
    value = data.draw(values(old))
    assert read_as(value, old, new) == expected(value, old, new)


@many
@given(st.data())
def test_what_only_adds_passes(data: st.DataObject) -> None:
    old = data.draw(specs())
    new = data.draw(changed(old, additive=True))
    assume(possible(old) and possible(new))
    assert told(old, new) == []
    value = data.draw(values(old))
    assert read_as(value, old, new) == expected(value, old, new)


@many
@given(st.data())
def test_what_passed_twice_is_read_as_if_it_had_been_read_in_between(data: st.DataObject) -> None:
    first = data.draw(specs())
    second = data.draw(changed(first))
    third = data.draw(changed(second))
    assume(all(map(possible, (first, second, third))))
    assume(not told(first, second) and not told(second, third))
    assert told(first, third) == []
    value = data.draw(values(first))
    between = expected(value, first, second)
    assert read_as(value, first, third) == expected(between, second, third)


class Old(msgspec.Struct):
    n: int
    name: str = "x"


def now(*fields: Any, **options: Any) -> Any:
    return shape_of_type(msgspec.defstruct("Old", fields, **options))


class Tree(msgspec.Struct):
    leaves: list[Tree] = []
    n: int = 0


Text = msgspec.defstruct("Text", [("t", str)], tag=True)
Number = msgspec.defstruct("Number", [("n", int)], tag=True)


@pytest.mark.parametrize(
    ("new", "said"),
    [
        (now(("n", str), ("name", str, "x")), "field 'n' was int, is str"),
        (now(("name", str, "x")), "field 'n' was removed"),
        (now(("n", int), ("y", int), ("name", str, "x")), "field 'y' was added without a default"),
        (now(("n", int), ("name", str)), "field 'name' lost its default, which rows without"),
        (now(("n", int), ("name", str, "y")), "field 'name' had the default 'x', has 'y'"),
        (now(("n", int), ("name", str, "x"), tag=True), "its tag was None"),
        (now(("n", float), ("name", str, "x")), "field 'n' was int, is float: not every int"),
        (shape_of_type(int), "was Old, is int"),
    ],
)
def test_a_difference_is_told_in_words(new: Any, said: str) -> None:
    (difference,) = differences(shape_of_type(Old), new)
    assert difference.startswith(said)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (int | str, int, "str was allowed, is not"),
        (Literal[1, 2], Literal[1], "2 was allowed, is not"),
        (list[int], list[str], "[] was int, is str"),
        (list[int], set[int], "was list[int], is set[int]"),
        (tuple[int, int], tuple[int, int, int], "was tuple[int, int], is tuple[int, int, int]"),
        (dict[str, int], dict[str, str], "[] was int, is str"),
        (dict[int, int], dict[str, int], "{keys} was int, is str"),
        (float, float | int, "int was added beside float"),
        (int, Annotated[int, msgspec.Meta(ge=0)], "is limited by ge=0 now"),
        (Text | Number, Text, "Number was allowed, is not"),
    ],
)
def test_so_is_one_of_a_type_without_fields(old: Any, new: Any, said: str) -> None:
    assert said in "; ".join(differences(shape_of_type(old), shape_of_type(new)))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (Text, Text | Number),
        (Annotated[int, msgspec.Meta(ge=0)], int),
        (Annotated[int, msgspec.Meta(ge=0, le=9)], float | None),
        (Literal["a"], str),
        (Tree, Tree),
        (dict[str, Old], dict[str, Old | None]),
    ],
)
def test_what_every_old_value_is_passes(old: Any, new: Any) -> None:
    assert differences(shape_of_type(old), shape_of_type(new)) == []


def test_a_class_that_contains_itself_is_compared_to_its_end() -> None:
    class Tree(msgspec.Struct):
        leaves: list[Tree] = []
        n: str = ""

    found = differences(shape_of_type(globals()["Tree"]), shape_of_type(Tree))
    assert "field 'n' was int, is str" in found


def test_a_shape_is_small_and_reads_as_the_type_does() -> None:
    shape = shape_of_type(Old | None)
    assert in_words(shape) == "Old | None"
    assert in_words(shape_of_type(Old), whole=True) == "Old(n: int, name: str = 'x')"
    assert len(msgspec.json.encode(shape)) < 200
