"""Invariant 5: a stale driver wins nothing, even when it was paused across a clean-up.

Method: the real ledger, two or three drivers, schedules that pause one anywhere; then the same
with the protection switched off, which must fail, or these tests would show nothing.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import msgspec
import pytest

from headrace.errors import Damaged, Fenced, ListLags, StorageError
from headrace.ledger.head import Head
from headrace.ledger.ledger import Ledger, OpenedLedger
from headrace.ledger.manifest import Manifest, manifest_name
from headrace.storage import MemoryStore, Store
from tests.support.ledger_drivers import Driver, manifest, run, split_brain


def paused_at(
    stop_after: int, *, check: bool, commits: int = 6, store: Store | None = None
) -> tuple[list[Driver], list[str]]:
    """Driver a stops after so many operations; b takes over, commits and cleans; a goes on."""
    drivers = [
        Driver("a", 3, check_predecessor=check),
        Driver("b", commits, check_predecessor=check),
    ]

    def schedule() -> itertools.chain[int]:
        return itertools.chain([0] * stop_after, _until_done(drivers[1], 1), itertools.repeat(0))

    return drivers, run(drivers, schedule(), store)


def _until_done(driver: Driver, index: int):  # type: ignore[no-untyped-def]
    while not driver.done:
        yield index


@pytest.mark.parametrize("stop_after", range(14))
def test_a_driver_that_was_paused_anywhere_is_fenced(stop_after: int) -> None:
    drivers, story = paused_at(stop_after, check=True)
    assert split_brain(drivers) is None, story
    assert drivers[1].error is None, story
    if not drivers[0].done or drivers[0].error:
        assert type(drivers[0].error).__name__ == "Fenced", story


def test_without_the_check_of_the_predecessor_a_paused_driver_is_told_committed() -> None:
    """The negative control: somewhere, the stale create succeeds and is acknowledged."""
    found = [split_brain(paused_at(stop, check=False)[0]) for stop in range(14)]
    assert any(found), "the protection protects from nothing"


@pytest.mark.parametrize("seed", range(300))
def test_random_schedules_of_three_drivers_never_split_a_step(seed: int) -> None:
    rng = random.Random(seed)
    drivers = [Driver(name, rng.randint(2, 5), check_predecessor=True) for name in "abc"]

    def schedule():  # type: ignore[no-untyped-def]
        while True:  # in bursts, so that somebody gets far while the others stand still
            who = rng.randrange(3)
            yield from [who] * rng.choice([1, 1, 2, 5, 20])

    story = run(drivers, schedule())
    assert split_brain(drivers) is None, "\n".join([f"seed {seed}", *story])
    assert any(driver.acknowledged for driver in drivers)
    for driver in drivers:
        assert type(driver.error).__name__ in ("Fenced", "NoneType", "Damaged"), driver.error


def test_every_schedule_of_two_short_lives_with_three_switches_is_safe() -> None:
    """One begins, another goes on, the first one goes on, and the other ends: after any operation each."""
    tried, alone, beside = set(), 7, 26
    for turns in itertools.product(range(alone + 1), range(beside + 1), range(alone + 1)):
        if turns[0] + turns[2] > alone:
            continue
        drivers = [
            Driver("a", 3, check_predecessor=True, keep=0),
            Driver("b", 4, check_predecessor=True, keep=0),
        ]
        order = [who for who, many in zip((0, 1, 0), turns, strict=True) for _ in range(many)]
        story = run(drivers, itertools.chain(order, itertools.repeat(1)))
        assert split_brain(drivers) is None, story
        tried.add(tuple(story))
    assert len(tried) > 300


def test_after_a_claim_nothing_of_the_driver_before_is_committed() -> None:
    """Also if neither has noticed the other: the claim has taken the name of the step."""
    store = MemoryStore()
    before, after = Ledger(store), Ledger(store)
    old = before.commit(None, manifest(None, "a0", claim=True))
    new = after.open()
    assert new is not None
    new = after.commit(new, manifest(new, "b0", claim=True))
    with pytest.raises(Fenced):
        before.commit(old, manifest(old, "a1", claim=False))
    assert after.commit(new, manifest(new, "b1", claim=False)) == Ledger(store).open()


class Lagging(MemoryStore):
    """A store whose list does not show some names."""

    hidden: frozenset[str] = frozenset()

    def list(self, prefix: str) -> list[str]:
        return [name for name in super().list(prefix) if name not in self.hidden]


def test_a_stalled_driver_is_fenced_although_the_list_lagged_when_its_rival_swept() -> None:
    """Else its predecessor would be there still, and the name after it would be free again."""
    store = Lagging()
    stale, rival = Ledger(store), Ledger(store)
    stalled = stale.commit(None, manifest(None, "a0", claim=True))
    for number in (1, 2):
        stalled = stale.commit(stalled, manifest(stalled, f"a{number}", claim=False))
    newest = rival.open()
    for number in range(6):
        assert newest is not None
        boundary = newest.step if number else 0
        following = manifest(newest, f"b{number}", claim=not number, boundary=boundary, base=True)
        newest = rival.commit(newest, following)
    assert newest is not None
    store.hidden = frozenset({manifest_name(1), manifest_name(2)})
    rival.sweep(newest)
    with pytest.raises(Fenced):
        stale.commit(stalled, manifest(stalled, "a3", claim=False))
    assert rival.open() == newest


def test_a_stalled_driver_is_fenced_although_the_list_showed_nothing_when_its_rival_swept() -> None:
    """A list may lag to the beginning: then what is left is asked for by its names."""
    store = Lagging()
    stale, rival = Ledger(store), Ledger(store)
    stalled = stale.commit(None, manifest(None, "a0", claim=True))
    for number in range(1, 8):
        stalled = stale.commit(stalled, manifest(stalled, f"a{number}", claim=False))
    newest = rival.commit(stalled, manifest(stalled, "b0", claim=True))
    for number in range(1, 6):
        boundary = newest.step if number > 1 else 0
        following = manifest(newest, f"b{number}", claim=False, boundary=boundary, base=True)
        newest = rival.commit(newest, following)
    store.hidden = frozenset(manifest_name(step) for step in range(1, 30))
    rival.sweep(newest)
    # What a leader that remembers a part of the steps alone cleans next:
    rival.clean([], range(stalled.step + 1, newest.boundary))
    with pytest.raises(Fenced):
        stale.commit(stalled, manifest(stalled, "a8", claim=False))
    store.hidden = frozenset()
    assert rival.open() == newest


def cleaned_far_beyond(store: MemoryStore) -> tuple[Ledger, Head]:
    """Return the ledger of a driver that has committed twenty steps, and has cleaned most of them away."""
    leads = Ledger(store)
    head = leads.commit(None, manifest(None, "a0", claim=True))
    for number in range(20):
        head = leads.commit(
            head, manifest(head, f"a{number + 1}", claim=False, boundary=number, base=True)
        )
        leads.clean([], range(1, head.boundary))
    return leads, head


@pytest.mark.parametrize("base", [False, True])
def test_on_a_list_that_shows_the_first_step_alone_no_history_begins_beside_the_real_one(
    base: bool,
) -> None:
    """The one who was fenced leaves a manifest behind, on which nobody must build."""
    store = Lagging()
    leads, head = cleaned_far_beyond(store)
    first = Ledger(MemoryStore()).commit(None, manifest(None, "a0", claim=True))
    with pytest.raises(Fenced):
        Ledger(store).commit(first, manifest(first, "b1", claim=True, base=base))
    store.hidden = frozenset(manifest_name(step) for step in range(2, 30))
    with pytest.raises(ListLags):
        Ledger(store).open()
    store.hidden = frozenset()
    assert Ledger(store).open() == head
    assert leads.commit(head, manifest(head, "a21", claim=False)).step == head.step + 1


class Behind(MemoryStore):
    """A store whose list shows what was there a while ago."""

    def __init__(self) -> None:
        super().__init__()
        self.shown: list[str] = []

    def list(self, prefix: str) -> list[str]:
        return [name for name in self.shown if name.startswith(prefix)]


@pytest.mark.parametrize("newest", [1, 4])
def test_a_list_that_shows_nothing_but_what_was_cleaned_away_since_lags_and_nothing_is_damaged(
    newest: int,
) -> None:
    store = Behind()
    _, head = cleaned_far_beyond(store)
    store.shown = [manifest_name(step) for step in range(newest + 1)]
    with pytest.raises(ListLags, match="it was cleaned away"):
        Ledger(store).open()
    with pytest.raises(ListLags, match="it was cleaned away"):
        Ledger(store).open_uncheckpointed()
    store.shown = [manifest_name(head.step)]
    assert Ledger(store).open() == head


class CleanedMeanwhile(Behind):
    """A store of five steps, which is cleaned while somebody reads, and whose list falls far behind then.

    Args:
        at: the reading of which step lets its driver go on and clean, and the how many-th.
        up_to: the first step that stays; by default the boundary.
        uncheckpointed: which steps are.
    """

    def __init__(
        self, at: int, time: int, up_to: int | None = None, uncheckpointed: range = range(0)
    ) -> None:
        super().__init__()
        self._at, self._left, self._up_to = manifest_name(at), time, up_to
        self._leads = Ledger(self)
        self.head = self._leads.commit(None, manifest(None, "a0", claim=True))
        for step in range(1, 5):
            next_ = manifest(self.head, f"a{step}", claim=False)
            self._commit(msgspec.structs.replace(next_, uncheckpointed=step in uncheckpointed))
        self.shown = [manifest_name(step) for step in range(5)]

    def _commit(self, next_: Manifest) -> None:
        self.head = self._leads.commit(self.head, next_)

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        if name == self._at and length != 1 and self.shown:
            self._left -= 1
            if not self._left:
                self._go_on()
        return super().read(name, offset, length)

    def _go_on(self) -> None:
        self.shown = [manifest_name(0)]
        for step in range(5, 9):
            boundary = self.head.step
            self._commit(manifest(self.head, f"a{step}", claim=False, boundary=boundary, base=True))
        self._leads.clean([], range(1, self._up_to or self.head.boundary))


def test_who_reads_while_it_is_cleaned_goes_on_from_what_was_seen_where_the_list_falls_behind() -> (
    None
):
    """(Found under seed 194024948: what was seen as the newest was there still, not what it needs.)"""
    store = CleanedMeanwhile(3, time=1, up_to=4)
    assert Ledger(store).open() == store.head
    assert store.head.step == 8


def test_who_reads_a_stretch_while_it_is_cleaned_goes_on_from_what_was_seen() -> None:
    store = CleanedMeanwhile(2, time=2, up_to=4, uncheckpointed=range(2, 5))
    assert Ledger(store).open_uncheckpointed() == OpenedLedger(store.head)
    assert store.head.step == 8


def test_where_all_that_was_seen_is_gone_and_the_list_is_far_behind_it_is_said_that_it_lags() -> (
    None
):
    with pytest.raises(ListLags):
        Ledger(CleanedMeanwhile(3, time=1)).open()
    with pytest.raises(ListLags):
        Ledger(CleanedMeanwhile(2, time=2, uncheckpointed=range(2, 5))).open_uncheckpointed()


@pytest.mark.parametrize("base", [False, True])
def test_what_a_driver_has_left_that_stood_still_is_nobodys_newest_step(base: bool) -> None:
    """(Without a base found under seed 2787131402: a manifest was told to be missing, and damaged.)"""
    store = Lagging()
    stale = Ledger(store)
    stalled = commit_on(stale, stale.commit(None, manifest(None, "a0", claim=True)), "a", 3)
    newest = goes_on_and_cleans(store, stalled)
    with pytest.raises(Fenced):
        stale.commit(stalled, manifest(stalled, "a4", claim=False, base=base))
    store.hidden = frozenset(manifest_name(step) for step in range(5, 30))
    with pytest.raises(ListLags):
        Ledger(store).open()
    store.hidden = frozenset()
    assert Ledger(store).open() == newest


@pytest.mark.parametrize("base", [False, True])
def test_what_two_drivers_have_left_that_stood_still_is_nobodys_newest_step(base: bool) -> None:
    """Each leaves a manifest, and one seems to follow the other."""
    store = Lagging()
    first, second = Ledger(store), Ledger(store)
    before = commit_on(first, first.commit(None, manifest(None, "a0", claim=True)), "a", 3)
    stalled = second.commit(before, manifest(before, "b4", claim=True))
    newest = goes_on_and_cleans(store, stalled)
    with pytest.raises(Fenced):
        first.commit(before, manifest(before, "a4", claim=False, boundary=2, base=base))
    with pytest.raises(Fenced):
        second.commit(stalled, manifest(stalled, "b5", claim=False, boundary=2, base=base))
    store.hidden = frozenset(manifest_name(step) for step in range(6, 30))
    with pytest.raises(ListLags):
        Ledger(store).open()
    store.hidden = frozenset()
    assert Ledger(store).open() == newest


@pytest.mark.parametrize("before", [1, 2, 3])
def test_a_manifest_that_is_missing_among_those_that_are_kept_is_damage_and_no_list_that_lags(
    before: int,
) -> None:
    store = MemoryStore()
    leads, head = cleaned_far_beyond(store)
    head = commit_on(leads, head, "b", 3)
    store.delete(manifest_name(head.step - before))
    with pytest.raises(Damaged, match="is missing"):
        Ledger(store).open()


def test_a_damaged_manifest_before_a_base_keeps_nobody_from_going_on() -> None:
    store = MemoryStore()
    leads, head = cleaned_far_beyond(store)
    head = leads.commit(head, manifest(head, "b", claim=False, boundary=head.boundary, base=True))
    name = manifest_name(head.step - 1)
    store.write(name, store.read(name)[:-1])
    assert Ledger(store).open() == head


class Doubtful(MemoryStore):
    """A store that creates a manifest, tells nothing, and lets others go on before it is asked again."""

    def __init__(self) -> None:
        super().__init__()
        self.doubtful = ""
        self.meanwhile: Callable[[], object] = int

    def create(self, name: str, data: bytes) -> None:
        super().create(name, data)
        if name == self.doubtful:
            raise StorageError("no reply")

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        if name == self.doubtful:
            self.doubtful = ""
            self.meanwhile()
            raise StorageError("no reply")
        return super().read(name, offset, length)


def test_a_create_that_is_repeated_after_all_was_cleaned_away_hides_that_from_nobody() -> None:
    """What is created again is not what others follow: else a third would take its head for still there."""
    store = Doubtful()
    first, second = Ledger(store), Ledger(store)
    before = commit_on(first, first.commit(None, manifest(None, "a0", claim=True)), "a", 3)
    seen: list[Head] = []

    def go_on() -> None:
        read = second.open()
        assert read is not None
        seen.append(read)
        seen.append(goes_on_and_cleans(store, read))

    store.doubtful, store.meanwhile = manifest_name(4), go_on
    with pytest.raises(Fenced):
        first.commit(before, manifest(before, "a4", claim=False))
    stalled, newest = seen
    assert stalled.step == 4
    with pytest.raises(Fenced):
        second.commit(stalled, manifest(stalled, "b5", claim=True))
    assert Ledger(store).open() == newest


def commit_on(leads: Ledger, head: Head, name: str, steps: int) -> Head:
    """Commit so many steps on top of a head; return the head then."""
    for number in range(steps):
        head = leads.commit(head, manifest(head, f"{name}{number + 1}", claim=False))
    return head


def goes_on_and_cleans(store: Store, head: Head) -> Head:
    """Let a rival claim, commit six steps and clean all before them; return its head."""
    rival = Ledger(store)
    head = rival.commit(head, manifest(head, "c0", claim=True))
    for number in range(1, 7):
        boundary = head.step if number > 1 else 0
        head = rival.commit(
            head, manifest(head, f"c{number}", claim=False, boundary=boundary, base=True)
        )
        rival.clean([], range(1, head.boundary))
    return head


def test_who_looks_on_sees_that_a_head_was_followed_though_all_that_followed_is_gone() -> None:
    store = MemoryStore()
    leads = Ledger(store)
    head = leads.commit(None, manifest(None, "a0", claim=True))
    seen = [head]
    for number in range(6):
        head = leads.commit(
            head, manifest(head, f"a{number + 1}", claim=False, boundary=number + 1, base=True)
        )
        seen.append(head)
    leads.clean([], range(1, head.boundary))
    assert [Ledger(store).is_followed(one) for one in seen] == [True] * 6 + [False]
