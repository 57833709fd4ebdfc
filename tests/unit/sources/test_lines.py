"""Records of text end where they do for whoever reads CSV a character at a time, and have lines."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.sources.lines import Quoting, ends_within_value, line_number, record_ends

TEXTS = st.text(alphabet='",\nab', max_size=30).map(str.encode)


OTHER = Quoting(b";", b"'", b"\\")


def ends_one_by_one(data: bytes, signs: bytes = b',"') -> list[int]:
    """Return where records end, by a reader that looks at each character.

    Args:
        signs: the delimiter, the quote, and maybe a sign that takes the meaning from the next one.
    """
    delimiter, quote, escape = signs[:1], signs[1:2], signs[2:] or b"none"
    ends, state, at = [], "begins", 0
    while at < len(data):
        character = data[at : at + 1]
        if character == escape and at + 1 < len(data):
            state = "quoted" if state == "quoted" else "within"
            at += 1
        elif state == "quoted":
            if character == quote:
                if data[at + 1 : at + 2] == quote:
                    at += 1
                else:
                    state = "within"
        elif state == "begins" and character == quote:
            state = "quoted"
        elif character == b"\n":
            ends.append(at + 1)
            state = "begins"
        else:
            state = "begins" if character == delimiter else "within"
        at += 1
    return ends


CSV = Quoting()


def is_open_at_the_end(data: bytes) -> bool:
    """Say whether a reader that looks at each character is between quotes at the end."""
    return len(ends_one_by_one(data + b"\n")) == len(ends_one_by_one(data))


@given(TEXTS)
@example(b'1,5" disk\n2,"a\n')
@example(b'"a\nb')
@example(b'"a\n"')
def test_a_value_is_open_where_its_quote_is(data: bytes) -> None:
    lines = data.removesuffix(b"\n").count(b"\n") + 1
    whole = len(record_ends(data, CSV)) == lines  # (as a parser finds it)
    rows = lines if whole else lines - 1
    assert ends_within_value(data, rows, CSV) == is_open_at_the_end(data)


@given(TEXTS)
@example(b'1,5" disk\n2,"a\nb"\n')
@example(b'"a"b"\n"c\n"\n')
@example(b'"a""\n"\n')
def test_records_of_csv_end_where_a_reader_of_characters_says(data: bytes) -> None:
    assert record_ends(data, CSV).tolist() == ends_one_by_one(data)


@given(st.text(alphabet="';\n\\ab", max_size=30).map(str.encode))
@example(b"a\\\nb;c\n'a\\'\n';b\n")
def test_other_signs_are_those_of_other_files(data: bytes) -> None:
    if data.endswith(b"\\"):
        data += b"a"
    assert record_ends(data, OTHER).tolist() == ends_one_by_one(data, b";'\\")


@given(TEXTS)
def test_every_newline_ends_a_record_of_json(data: bytes) -> None:
    expected = [at + 1 for at in range(len(data)) if data[at : at + 1] == b"\n"]
    assert record_ends(data).tolist() == expected


@pytest.mark.parametrize(("row", "line"), [(0, 2), (1, 4), (2, 6), (3, 7)])
def test_a_record_is_on_the_line_on_which_it_begins(tmp_path: Path, row: int, line: int) -> None:
    head, data = b"text,n\n", b'"a\nb",1\nc,2\n\nd,3\n" ",4\n'
    path = tmp_path / "a.csv"
    path.write_bytes(head + data)
    with path.open("rb") as file:
        assert line_number(file, len(head), data, row, CSV) == line
