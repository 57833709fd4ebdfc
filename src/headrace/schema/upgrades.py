"""Versions of state: what is declared beside a state so that rows that older code stored can be read.

A state has a version, 1 unless it says otherwise. Each stored row of a later version says which one it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from headrace.errors import PipelineError
from headrace.schema.codecs import StateCodec

#: What makes a row of an older version one of today's: a function of the value as plain data; the older
#: type (or codec) and a function of such values; or None, where such rows are given up.
UpgradeLike = Callable[[Any], Any] | tuple[Any, Callable[[Any], Any]] | None


class Upgrade(msgspec.Struct, frozen=True):
    """How rows of one older version are read.

    Attributes:
        convert: from an old value to a new one; None where such rows are given up.
        reads: what the function is given: values of this type, or of this codec; None for plain data.
    """

    convert: Callable[[Any], Any] | None
    reads: Any = None

    def state_codec(self, place: str) -> StateCodec:
        """Return what decodes old values.

        Raises:
            PipelineError: for a type that state cannot have.
        """
        if not isinstance(self.reads, type) and hasattr(self.reads, "decode"):
            return StateCodec(None, self.reads, place=place)
        return StateCodec(Any if self.reads is None else self.reads, None, place=place)


def upgrades_of(version: int, upgrade: Mapping[int, UpgradeLike] | None) -> dict[int, Upgrade]:
    """Return the upgrades that a declaration names, by the version that they begin with.

    Raises:
        PipelineError: for versions that cannot be, and for what is no upgrade.
    """
    if type(version) is not int or not 1 <= version < 1 << 16:
        raise PipelineError(
            f"version={version!r} is no version",
            remedy="count 1, 2, 3, … with the changes of shape",
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
                f"upgrade= from version {older}: {convert!r} is no function",
                remedy="give a function of the plain value, (OldType, function), or None to give rows up",
            )
        found[older] = Upgrade(convert, reads)
    return found
