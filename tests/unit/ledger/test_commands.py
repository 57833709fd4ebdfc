"""A damaged command is refused; it is never taken for another one."""

from __future__ import annotations

import pytest

from headrace.ledger.commands import Command, CommandLog, command_name
from headrace.storage import MemoryStore

REMOVE = Command("remove", names=["a", "b"], sinks=["out"], forget=True, by="me", nonce="n1")


def test_every_flipped_bit_and_every_truncation_of_a_command_is_found() -> None:
    store = MemoryStore()
    log = CommandLog(store)
    name = command_name(log.put(REMOVE, 0))
    data = store.read(name)
    for position in range(len(data)):
        for bit in range(8):
            flipped = bytearray(data)
            flipped[position] ^= 1 << bit
            store.write(name, bytes(flipped))
            asked = log.read(0)
            assert asked is not None and asked.command is None and asked.problem
        store.write(name, data[:position])
        asked = log.read(0)
        assert asked is not None and asked.command is None and asked.problem


def test_a_command_of_an_older_version_is_read_and_its_damage_is_typed() -> None:
    store = MemoryStore()
    store.create(command_name(0), b'{"kind":"remove","names":["a"],"nonce":"x"}')
    store.create(command_name(1), b'{"kind":"remove","names":["\xff"],"nonce":"x"}')
    store.create(command_name(2), b'{"kind":"remove","names":' + b"[" * 100_000)
    first, second, third = CommandLog(store).pending(0)
    assert first.command == Command("remove", names=["a"], nonce="x")
    assert second.command is None and "is not a command" in second.problem
    assert third.command is None


@pytest.mark.parametrize("kind", ["stop", "pause", "resume", "drain"])
def test_a_command_reads_as_it_was_put(kind: str) -> None:
    store = MemoryStore()
    command = Command(kind, nonce="n")  # type: ignore[arg-type]
    number = CommandLog(store).put(command, 0)
    asked = CommandLog(store).read(number)
    assert asked is not None and asked.command == command
