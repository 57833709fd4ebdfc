"""Records of text end where they do for whoever reads CSV a character at a time, and have lines."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.sources.lines import line_number, record_ends

TEXTS = st.text(alphabet='",\nab', max_size=30).map(str.encode)


def ends_one_by_one(data: bytes) -> list[int]:
    """Return where records end, by a reader that looks at each character."""
    ends, state, at = [], "begins", 0
    while at < len(data):
        character = data[at : at + 1]
        if state == "quoted":
            if character == b'"':
                if data[at + 1 : at + 2] == b'"':
                    at += 1
                else:
                    state = "within"
        elif state == "begins" and character == b'"':
            state = "quoted"
        elif character == b"\n":
            ends.append(at + 1)
            state = "begins"
        else:
            state = "begins" if character == b"," else "within"
        at += 1
    return ends


@given(TEXTS)
@example(b'1,5" disk\n2,"a\nb"\n')
@example(b'"a"b"\n"c\n"\n')
@example(b'"a""\n"\n')
def test_records_of_csv_end_where_a_reader_of_characters_says(data: bytes) -> None:
    assert record_ends(data, quoted=True).tolist() == ends_one_by_one(data)


@given(TEXTS)
def test_every_newline_ends_a_record_of_json(data: bytes) -> None:
    expected = [at + 1 for at in range(len(data)) if data[at : at + 1] == b"\n"]
    assert record_ends(data, quoted=False).tolist() == expected


@pytest.mark.parametrize(("row", "line"), [(0, 2), (1, 4), (2, 6), (3, 7)])
def test_a_record_is_on_the_line_on_which_it_begins(tmp_path: Path, row: int, line: int) -> None:
    head, data = b"text,n\n", b'"a\nb",1\nc,2\n\nd,3\n" ",4\n'
    path = tmp_path / "a.csv"
    path.write_bytes(head + data)
    with path.open("rb") as file:
        assert line_number(file, len(head), data, row, quoted=True) == line
