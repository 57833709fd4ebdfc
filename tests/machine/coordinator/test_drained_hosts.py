"""Which hosts are drained follows from the commands alone; nobody is left without a host."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.coordinator.migrations.drained_hosts import drained_after, remark
from headrace.coordinator.refused import Refused
from headrace.ledger.commands import Command, Kind
from headrace.ledger.places import Places

HOSTS = ["a", "b", "c"]
commands = st.builds(
    Command,
    st.sampled_from(["drain_hosts", "undrain_hosts"]),
    hosts=st.lists(st.sampled_from([*HOSTS, "gone"]), max_size=3, unique=True),
)


@given(asked=st.lists(commands, max_size=8), there=st.sampled_from([HOSTS, ["a"], []]))
def test_some_host_is_always_left_and_what_is_refused_changes_nothing(
    asked: list[Command], there: list[str]
) -> None:
    drained: frozenset[str] = frozenset()
    for command in asked:
        named = set(command.hosts)
        try:
            found = drained_after(drained, command, Places(there, []))
        except Refused:
            found = None
        if command.kind == "drain_hosts":
            allowed = bool(named and set(there) - drained - named)
            expected = drained | named
        else:
            allowed = bool(named) and named <= drained
            expected = drained - named
        assert (found is not None) == allowed, found
        if found is not None:
            assert found == expected
            drained = found
    assert not there or set(there) - drained


def test_before_a_pipeline_runs_nobody_knows_where_it_will_so_all_is_allowed() -> None:
    assert drained_after([], Command("drain_hosts", hosts=HOSTS), None) == set(HOSTS)


def test_a_refusal_says_what_there_is() -> None:
    def refused(kind: Kind, *hosts: str, there: list[str]) -> str:
        with pytest.raises(Refused) as refusal:
            drained_after(["b"], Command(kind, hosts=list(hosts)), Places(there))
        return refusal.value.why

    assert refused("drain_hosts", "a", there=["a", "b"]) == (
        "nothing else would be left: there are a, b"
    )
    assert refused("undrain_hosts", "b", "a", there=HOSTS) == "a is not drained; drained are: b"
    assert refused("drain_hosts", there=HOSTS) == "it names no host"
    assert "one host" in refused("drain_hosts", "a", there=[])


def test_the_answer_says_who_moves_and_what_is_not_there() -> None:
    places = Places(["a", "b"], ["a", "b", "a"])
    assert remark(["a"], places) == "workers 0, 2 move"
    assert remark(["b", "gone"], places) == "worker 1 moves; no executor is on gone now"
