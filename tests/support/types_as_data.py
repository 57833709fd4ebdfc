"""Types as plain data, drawn by Hypothesis: built, changed, given values, and read by an oracle.

A spec is a tuple that begins with its kind. A value of a spec is made of plain Python: a record is a dict
of its fields. Nothing here knows shapes, nor how they are compared.
"""

from __future__ import annotations

import dataclasses
from collections import namedtuple
from typing import Annotated, Any, Literal, NotRequired, TypedDict, Union

import msgspec
from hypothesis import strategies as st

Spec = tuple[Any, ...]
REQUIRED = "required"
RECORDS = ("struct", "array", "dataclass", "typed", "named")
_SIMPLE = [("int",), ("float",), ("str",), ("bool",), ("bytes",)]
#: What a union may have together.
_APART = [("int",), ("str",), ("bool",), ("list", ("int",)), ("none",)]


def literals() -> st.SearchStrategy[Spec]:
    chosen = st.lists(st.sampled_from([1, 2, 3, "x", "y"]), min_size=1, unique=True)
    return chosen.map(lambda values: ("literal", tuple(values)))


def leaves() -> st.SearchStrategy[Spec]:
    unions = st.lists(st.sampled_from(_APART), min_size=2, unique=True)
    return st.one_of(
        st.sampled_from(_SIMPLE),
        st.just(("bounded", 0, 9)),
        literals(),
        unions.map(lambda members: ("union", tuple(members))),
    )


def specs() -> st.SearchStrategy[Spec]:
    return st.recursive(leaves(), _around, max_leaves=5)


def _around(inner: st.SearchStrategy[Spec]) -> st.SearchStrategy[Spec]:
    return st.one_of(
        st.tuples(st.just("list"), inner),
        st.tuples(st.just("dict"), inner),
        st.tuples(st.just("pair"), inner, inner),
        inner.filter(lambda s: s[0] not in ("union", "none")).map(
            lambda s: ("union", (s, ("none",)))
        ),
        records(inner),
    )


@st.composite
def records(draw: Any, inner: st.SearchStrategy[Spec]) -> Spec:
    kind = draw(st.sampled_from(RECORDS))
    names = draw(st.lists(st.sampled_from("abcd"), min_size=1, max_size=3, unique=True))
    return (kind, tuple(_in_order([draw(_field(name, inner)) for name in names])))


@st.composite
def _field(draw: Any, name: str, inner: st.SearchStrategy[Spec]) -> tuple[str, Spec, Any]:
    spec = draw(inner)
    default = draw(plain_defaults(spec)) if draw(st.booleans()) else REQUIRED
    return (name, spec, default)


def plain_defaults(spec: Spec) -> st.SearchStrategy[Any]:
    """Defaults are of simple types, so that they are plain in a class, too."""
    if spec[0] in ("int", "float", "str", "bool", "bounded", "literal", "bytes"):
        return values(spec)
    if spec[0] == "union" and ("none",) in spec[1]:
        return st.none()
    return st.just(REQUIRED)


def _in_order(fields: list[Any]) -> list[Any]:
    """Fields with defaults come last, as Python wants it."""
    return sorted(fields, key=lambda field: field[2] != REQUIRED)


def built(spec: Spec) -> Any:
    """Return the Python type of a spec."""
    match spec:
        case ("int" | "float" | "str" | "bool" | "bytes" as name,):
            return {"int": int, "float": float, "str": str, "bool": bool, "bytes": bytes}[name]
        case ("none",):
            return None
        case ("bounded", low, high):
            return Annotated[int, msgspec.Meta(ge=low, le=high)]
        case ("literal", chosen):
            return Literal[chosen]
        case ("union", members):
            return Union[tuple(built(member) for member in members)]  # noqa: UP007
        case ("list", item):
            return list[built(item)]  # type: ignore[misc]
        case ("dict", item):
            return dict[str, built(item)]  # type: ignore[misc]
        case ("pair", one, other):
            return tuple[built(one), built(other)]  # type: ignore[misc]
    kind, fields = spec
    if kind == "typed":
        types = {n: built(s) if d == REQUIRED else NotRequired[built(s)] for n, s, d in fields}
        return TypedDict("R", types)  # type: ignore[operator, misc]
    if kind == "named":
        made = namedtuple("R", [n for n, _, _ in fields])
        made.__annotations__ = {n: built(s) for n, s, _ in fields}
        defaults = [d for _, _, d in fields if d != REQUIRED]
        made.__new__.__defaults__ = tuple(defaults)
        made._field_defaults = {n: d for n, _, d in fields if d != REQUIRED}
        return made
    told = [(n, built(s)) if d == REQUIRED else (n, built(s), d) for n, s, d in fields]
    if kind == "dataclass":
        return dataclasses.make_dataclass("R", told)
    return msgspec.defstruct("R", told, array_like=kind == "array")


def values(spec: Spec) -> st.SearchStrategy[Any]:
    """Return plain values of a spec."""
    match spec:
        case ("int",):
            return st.integers(-(2**63), 2**63 - 1)
        case ("float",):
            return st.floats(allow_nan=False)
        case ("str",):
            return st.text(max_size=3)
        case ("bytes",):
            return st.binary(max_size=3)
        case ("bool",):
            return st.booleans()
        case ("none",):
            return st.none()
        case ("bounded", low, high):
            return st.integers(low, high)
        case ("literal", chosen):
            return st.sampled_from(chosen)
        case ("union", members):
            return st.one_of(*(values(member) for member in members))
        case ("list", item):
            return st.lists(values(item), max_size=2)
        case ("dict", item):
            return st.dictionaries(st.text(max_size=2), values(item), max_size=2)
        case ("pair", one, other):
            return st.tuples(values(one), values(other))
    kind, fields = spec
    wanted = {n: values(s) for n, s, d in fields if kind != "typed" or d == REQUIRED}
    optional = {n: values(s) for n, s, _ in fields if n not in wanted}
    return st.fixed_dictionaries(wanted, optional=optional)


def made(value: Any, spec: Spec) -> Any:
    """Return a plain value as one of the type."""
    match spec:
        case ("union", members):
            return made(value, member_of(value, members))
        case ("list", item):
            return [made(v, item) for v in value]
        case ("dict", item):
            return {k: made(v, item) for k, v in value.items()}
        case ("pair", *items):
            return tuple(made(v, s) for v, s in zip(value, items, strict=True))
        case (kind, fields) if kind in RECORDS:
            known = {n: s for n, s, _ in fields}
            inner = {n: made(v, known[n]) for n, v in value.items()}
            return inner if kind == "typed" else built(spec)(**inner)
    return value


def plain(value: Any, spec: Spec) -> Any:
    """Return a value of the type as plain data."""
    match spec:
        case ("union", members):
            return plain(value, member_of(value, members))
        case ("list", item):
            return [plain(v, item) for v in value]
        case ("dict", item):
            return {k: plain(v, item) for k, v in value.items()}
        case ("pair", *items):
            return tuple(plain(v, s) for v, s in zip(value, items, strict=True))
        case ("typed", fields):
            known = {n: s for n, s, _ in fields}
            return {n: plain(v, known[n]) for n, v in value.items()}
        case (kind, fields) if kind in RECORDS:
            return {n: plain(getattr(value, n), s) for n, s, _ in fields}
    return value


def member_of(value: Any, members: tuple[Spec, ...]) -> Spec:
    """Return the member of a union that a value is of: no two are alike."""
    kinds = {
        "int": int,
        "bounded": int,
        "str": str,
        "bool": bool,
        "none": type(None),
        "list": list,
        "float": float,
        "bytes": bytes,
        "dict": dict,
        "pair": tuple,
    }
    for member in members:
        if member[0] == "literal" and type(value) in (int, str):
            return member
        if type(value) is kinds.get(member[0]):
            return member
    rest = [m for m in members if m[0] in (RECORDS if type(value) is dict else ("float",))]
    return (rest or members)[0]


def expected(value: Any, old: Spec, new: Spec) -> Any:
    """Return what a plain value of an old type is to be under a new one: the oracle."""
    if old[0] == "union":
        old = member_of(value, old[1])
    if new[0] == "union":
        new = member_of(value, new[1])
    if new[0] == "float":
        return float(value)
    if new[0] in ("list", "dict", "pair"):
        pairs = zip(old[1:], new[1:], strict=True)
        if new[0] == "pair":
            return tuple(expected(v, *of) for v, of in zip(value, pairs, strict=True))
        of = next(pairs)
        if new[0] == "list":
            return [expected(v, *of) for v in value]
        return {k: expected(v, *of) for k, v in value.items()}
    if new[0] not in RECORDS:
        return value
    known = {n: s for n, s, _ in old[1]}
    found = {n: expected(value[n], known[n], s) for n, s, _ in new[1] if n in value}
    missing = {n: d for n, _, d in new[1] if n not in value and new[0] != "typed"}
    return {**found, **missing}


# -- changes ----------------------------------------------------------------------------------


@st.composite
def changed(draw: Any, spec: Spec, *, additive: bool = False) -> Spec:
    """Return a spec that was changed somewhere, or not; with ``additive`` only in ways that pass."""
    if spec[0] in ("list", "dict", "pair"):
        return (spec[0], *(draw(changed(s, additive=additive)) for s in spec[1:]))
    if spec[0] in RECORDS:
        return draw(_changed_record(spec, additive=additive))
    choices = [spec]
    if spec[0] == "bounded":
        choices += [("bounded", -1, 10), ("int",), ("float",)]
    if spec[0] == "literal":
        choices.append(("literal", (*spec[1], *(v for v in (7, 8) if int in map(type, spec[1])))))
    if spec[0] in ("int", "str", "bool", "list", "literal", "bounded"):
        choices.append(("union", (spec, ("none",))))
    if spec[0] == "union":
        kinds = {member[0] for member in spec[1]}
        free = [m for m in _APART if m[0] not in kinds and not kinds & {*RECORDS, "pair", "dict"}]
        if not kinds & {"literal", "bounded", "float", "bytes"}:
            choices += [("union", (*spec[1], member)) for member in free]
    if not additive:
        choices += [*_SIMPLE, ("bounded", 2, 5), ("list", spec), ("literal", (1,))]
        choices += [("union", (("float",), ("literal", (1,)))), ("union", (("float",), ("none",)))]
        choices += [m for m in spec[1] if m != ("none",)] if spec[0] == "union" else []
    return draw(st.sampled_from(choices))  # type: ignore[no-any-return]


@st.composite
def _changed_record(draw: Any, spec: Spec, *, additive: bool) -> Spec:
    kind, fields = spec
    found = [
        (n, draw(changed(s, additive=additive)) if d == REQUIRED else s, d) for n, s, d in fields
    ]
    taken = {n for n, _, _ in fields}
    if draw(st.booleans()):
        name = draw(st.sampled_from([n for n in "efgh" if n not in taken]))
        found.append((name, ("int",), draw(st.integers(0, 9))))
    if additive:
        return (kind, tuple(found))
    for _ in range(draw(st.integers(0, 2))):
        at = draw(st.integers(0, len(found) - 1))
        name, of, default = found[at]
        match draw(st.sampled_from(["drop", "rename", "default", "swap", "kind", "type"])):
            case "drop" if len(found) > 1:
                del found[at]
            case "rename" if "z" not in {n for n, _, _ in found}:
                found[at] = ("z", of, default)
            case "default":
                found[at] = (name, of, draw(st.one_of(st.just(REQUIRED), plain_defaults(of))))
            case "swap":
                found[0], found[at] = found[at], found[0]
            case "kind":
                kind = draw(st.sampled_from(RECORDS))
            case "type":
                found[at] = (name, draw(leaves()), REQUIRED)
    return (kind, tuple(_in_order(found)))
