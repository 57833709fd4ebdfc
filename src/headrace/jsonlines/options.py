"""Options of msgspec classes that restrict JSON objects: their tag, and ``forbid_unknown_fields``.

Columns cannot express these. So if a class has such options, its objects are decoded a second time,
as types that have only these options.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from headrace.schema.forms import Form
from headrace.schema.nested import Constrained, Dict, FormPart, Many, RecordForm


def type_with_options(
    declared: Any, parts: Mapping[str, FormPart], also: Iterable[str] = ()
) -> Any:
    """Return a type with which msgspec refuses what a class, and those inside it, forbid.

    Args:
        declared: the class.
        parts: its fields, by their names in JSON.
        also: further names that its objects may have.

    Returns:
        the type; None if there are no options, so that there is nothing to refuse.
    """
    config: Any = getattr(declared, "__struct_config__", None)
    forbids = config is not None and config.forbid_unknown_fields
    tag = None if config is None else config.tag
    inner = {name: _type_in(part.form) for name, part in parts.items()}
    if not forbids and tag is None and not any(inner.values()):
        return None
    names = [*inner, *(name for name in also if name not in inner)]
    if not forbids:
        names = [name for name in names if inner.get(name) is not None]
    fields: list[Any] = [
        (f"f{at}", msgspec.Raw, msgspec.Raw())
        if inner.get(name) is None
        else (f"f{at}", inner[name] | None, None)
        for at, name in enumerate(names)
    ]
    return msgspec.defstruct(
        "Options",
        fields,
        rename={f"f{at}": name for at, name in enumerate(names)},
        tag=tag,
        tag_field=None if tag is None else config.tag_field,
        forbid_unknown_fields=forbids,
        gc=False,
    )


def _type_in(form: Form) -> Any:
    if isinstance(form, Constrained):
        return _type_in(form.inner)
    if isinstance(form, RecordForm):
        if issubclass(form.accepts, tuple):
            return None  # a tuple, which may be an array
        return type_with_options(form.accepts, {part.outside: part for part in form.parts})
    item = _type_in(form.item.form) if isinstance(form, Many | Dict) else None
    if item is None:
        return None
    return dict[str, item | None] if isinstance(form, Dict) else list[item | None]  # type: ignore[valid-type]
