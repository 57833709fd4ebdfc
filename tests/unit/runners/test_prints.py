"""Lines that user code prints in a worker."""

from __future__ import annotations

import io

from headrace.runners.prints import write_whole_lines


class Pipe(io.RawIOBase):
    """A pipe that records what each write brings."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        self.writes.append(bytes(data))  # type: ignore[call-overload]
        return len(self.writes[-1])


def unbuffered() -> tuple[Pipe, io.TextIOWrapper]:
    """Return a stream like the one that Python has when it runs unbuffered."""
    pipe = Pipe()
    return pipe, io.TextIOWrapper(pipe, write_through=True)  # type: ignore[arg-type]


def test_a_printed_line_is_one_write() -> None:
    pipe, stream = unbuffered()
    print("handled", "/0", file=stream)
    assert len(pipe.writes) > 1, "an unbuffered stream writes a line in pieces"
    pipe.writes.clear()
    write_whole_lines(stream)
    print("handled", "/0", file=stream)
    print("handled", "/1", 7, file=stream)
    assert pipe.writes == [b"handled /0\n", b"handled /1 7\n"]


def test_what_a_task_left_of_a_line_is_written_when_the_next_one_begins() -> None:
    pipe, stream = unbuffered()
    write_whole_lines(stream)
    print("working", end="", file=stream)
    assert pipe.writes == []
    write_whole_lines(stream)
    assert pipe.writes == [b"working"]


def test_a_stream_that_is_not_pythons_own_is_left_as_it_is() -> None:
    stream = io.StringIO()
    write_whole_lines(stream)
    print("handled", "/0", file=stream)
    assert stream.getvalue() == "handled /0\n"
