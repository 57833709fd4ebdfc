"""Which file is which: a file has one verdict, and what was read belongs to one file at most."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.sources.files.copies import Copy
from headrace.sources.files.folders import Facts
from headrace.sources.files.matching import Matches, Remembered, match
from headrace.sources.files.position import FileRead

Contents = dict[str, tuple[str, str]]  # name: id, content


class World:
    """Files as they were read, and as they are now."""

    ids_stay = True

    def __init__(self, then: Contents, now: Contents, *, touched: set[str]) -> None:
        self.then, self.now = then, now
        self.known = {
            name: Remembered(FileRead(name, len(text), len(text), of, 1, "head", 1), ord(name[0]))
            for name, (of, text) in then.items()
        }
        self.files = {
            name: Facts(of, len(text), 2 if of in touched else 1)
            for name, (of, text) in now.items()
        }

    def seen(self) -> dict[str, Facts]:
        return {name: of for name, of in self.files.items() if not self.is_as_it_was(name, of)}

    def is_as_it_was(self, name: str, facts: Facts) -> bool:
        entry = self.known[name].entry if name in self.known else None
        return entry is not None and facts[:3] == (entry.id, entry.size, entry.modified)

    def gone(self) -> list[Remembered]:
        return [of for name, of in self.known.items() if name not in self.files]

    def hash_of(self, name: str) -> int:
        return ord(name[0])

    def same_id(self, entry: FileRead, facts: Facts) -> bool:
        return entry.id == facts.id

    def of_name(self, name: str) -> Remembered | None:
        return self.known.get(name)

    def of_id(self, facts: Facts) -> Iterable[Remembered]:
        return [of for of in self.known.values() if of.entry.id == facts.id]

    def facts_at(self, of: Remembered) -> Facts | None:
        return self.files.get(of.entry.name)

    def waits_already(self, name: str, facts: Facts) -> bool:
        return False

    def begins_with(self, name: str, of: Remembered) -> bool:
        return self.now[name][1].startswith(self.then[of.entry.name][1])

    def is_changed(self, name: str, of: Remembered) -> bool:
        text, was = self.now[name][1], self.then[of.entry.name][1]
        return len(text) >= len(was) and text[:1] == was[:1] and not text.startswith(was)

    def may_be_renamed(self, name: str, of: Remembered, facts: Facts) -> bool:
        return facts.size != of.entry.size or facts.modified == of.entry.modified

    def is_packed(self, name: str) -> bool:
        return name == "f.gz"

    def head_of(self, name: str) -> Callable[[int], str]:
        return lambda size: "head"

    def copy_of(self, name: str) -> Copy | None:
        return None

    def gone_in(self, name: str) -> Remembered | None:
        return None


names = st.sampled_from(["a", "b", "c", "d", "e", "f.gz"])
ids = st.sampled_from(["1", "2", "3", "4"])
texts = st.sampled_from(["", "x", "xy", "xyz", "xq", "z", "zz"])
of_ids = st.fixed_dictionaries({str(of): texts for of in range(1, 5)})
links = st.dictionaries(names, ids, max_size=6)


@st.composite
def worlds(draw: st.DrawFn) -> World:
    then = {name: (of, draw(texts)) for name, of in draw(links).items()}
    content = draw(of_ids)  # (names of one file have one content)
    now = {name: (of, content[of]) for name, of in draw(links).items()}
    return World(then, now, touched=draw(st.sets(ids)))


def verdicts(of: Matches) -> list[str]:
    others = [*of.links, *of.fresh, *of.rewritten, *(name for name, _ in of.doubtful)]
    return [*of.same, *others, *(known.entry.name for known in of.changed)]


@given(worlds())
@settings(max_examples=400)
def test_each_file_has_one_verdict_and_what_was_read_belongs_to_one_file(world: World) -> None:
    found = match(world.seen(), world.gone(), world)
    assert Counter(verdicts(found)) == Counter([*world.seen()])
    owned = Counter(of.hash for of in found.same.values())
    assert max(owned.values(), default=1) == 1
    assert not owned.keys() & {of.hash for of in found.lost}
    for name, of in found.same.items():
        assert world.begins_with(name, of)


@given(worlds())
@settings(max_examples=200)
def test_what_a_file_is_does_not_depend_on_the_order_in_which_files_are_seen(
    world: World,
) -> None:
    seen, gone = world.seen(), world.gone()
    one = match(seen, gone, world)
    other = match(dict(reversed(seen.items())), gone[::-1], world)
    assert vars(one) | {"lost": 0} == vars(other) | {"lost": 0}
    assert {of.hash for of in one.lost} == {of.hash for of in other.lost}


@given(worlds())
@settings(max_examples=200)
def test_of_the_names_of_a_file_one_counts(world: World) -> None:
    found = match(world.seen(), world.gone(), world)
    counted = [*found.same, *found.fresh, *found.rewritten]
    unchanged = [name for name in world.now if name not in world.seen()]
    for name in found.links:
        others = {world.now[of][0] for of in (*counted, *unchanged, *verdicts(found)) if of != name}
        assert world.now[name][0] in others
    new = Counter(world.now[name][0] for name in found.fresh)
    assert max(new.values(), default=1) == 1


def test_a_name_that_a_file_has_left_is_that_of_the_next_file() -> None:
    world = World(
        {"a": ("1", "x"), "b": ("2", "z")}, {"b": ("1", "xy"), "a": ("3", "zz")}, touched=set()
    )
    found = match(world.seen(), world.gone(), world)
    assert {name: of.entry.name for name, of in found.same.items()} == {"b": "a"}
    assert found.fresh == ["a"]
    assert [of.entry.name for of in found.lost] == ["b"]


def test_a_copy_is_known_when_the_emptied_file_has_another_name_by_then() -> None:
    world = World(
        {"a": ("1", "x")}, {"c": ("4", "x"), "b": ("1", ""), "a": ("2", "z")}, touched=set()
    )
    found = match(world.seen(), world.gone(), world)
    assert {name: of.entry.name for name, of in found.same.items()} == {"c": "a"}
    assert sorted((*found.fresh, *found.rewritten)) == ["a", "b"]
    assert not found.lost


def test_files_on_two_disks_may_have_the_same_number() -> None:
    world = World(
        {"a": ("1", "x")}, {"a": ("1", "x"), "b": ("1", "z"), "c": ("1", "q")}, touched=set()
    )
    for device, name in enumerate("abc"):
        world.files[name] = world.files[name]._replace(device=device)
    seen = {name: world.files[name] for name in "bc"}
    found = match(seen, [], world)
    assert found.fresh == ["b", "c"] and not found.links and not found.lost
