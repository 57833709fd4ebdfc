"""Upgrades of state: declared with a state, so that rows stored by older code can be read.

A state has a version, which is 1 by default. Each stored row of a later version carries its number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from headrace.errors import PipelineError
from headrace.schema.codecs import StateCodec

#: Turns rows of an older version into rows of today's: a function of the value as plain data; the
#: older type (or codec) and a function of such values; or None, if such rows are given up.
UpgradeLike = Callable[[Any], Any] | tuple[Any, Callable[[Any], Any]] | None


class Upgrade(msgspec.Struct, frozen=True):
    """How rows of one older version are read.

    Attributes:
        convert: turns an old value into a new one; None if such rows are given up.
        reads: the type or codec of the values that ``convert`` is given; None for plain data.
    """

    convert: Callable[[Any], Any] | None
    reads: Any = None

    def state_codec(self, place: str) -> StateCodec:
        """Return the codec that decodes old values.

        Raises:
            PipelineError: for a type that state cannot have.
        """
        if not isinstance(self.reads, type) and hasattr(self.reads, "decode"):
            return StateCodec(None, self.reads, place=place)
        return StateCodec(Any if self.reads is None else self.reads, None, place=place)


def upgrades_of(version: int, upgrade: Mapping[int, UpgradeLike] | None) -> dict[int, Upgrade]:
    """Return the declared upgrades, by the version that they start from.

    Raises:
        PipelineError: for an impossible version, or for an entry that is not an upgrade.
    """
    if type(version) is not int or not 1 <= version < 1 << 16:
        raise PipelineError(
            f"version={version!r} is not a version",
            remedy="count 1, 2, 3, … with the changes of shape",
        )
    if upgrade is not None and not isinstance(upgrade, Mapping):
        raise PipelineError(
            f"upgrade={upgrade!r} says of no version how its rows are read",
            remedy="give a dict of version → function: upgrade={1: function}",
        )
    found = {}
    for older, wanted in (upgrade or {}).items():
        if type(older) is not int or not 1 <= older < version:
            raise PipelineError(
                f"upgrade= has an entry for version {older!r}, and the state's version is {version}",
                remedy=f"upgrade from versions before it, and raise version= (now {version}) with a change",
            )
        reads, convert = wanted if isinstance(wanted, tuple) else (None, wanted)
        if convert is not None and not callable(convert):
            raise PipelineError(
                f"upgrade= from version {older}: {convert!r} is not a function",
                remedy="give a function of the plain value, (OldType, function), or None to give rows up",
            )
        found[older] = Upgrade(convert, reads)
    return found
