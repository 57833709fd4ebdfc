"""What a look has found."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import msgspec

from headrace.errors import HeadraceError

State = Literal["ok", "warning", "failed", "skipped"]


class Finding(msgspec.Struct, frozen=True):
    """One thing that was looked at.

    Attributes:
        check: what was looked at, in a word or two.
        state: how it is. A warning is something that works, and may not be meant.
        text: what was found.
        remedy: what to do about it; empty if nothing has to be done.
        facts: the same for programs.
    """

    check: str
    state: State
    text: str
    remedy: str = ""
    facts: dict[str, Any] = {}


def failed(check: str, error: HeadraceError) -> Finding:
    """Return a typed error as a finding."""
    place = f" ({error.place})" if error.place else ""
    return Finding(
        check, "failed", f"{error.what}{place}", error.remedy or "", {"code": error.code}
    )


def is_well(findings: Iterable[Finding]) -> bool:
    """Return whether nothing has failed."""
    return all(finding.state != "failed" for finding in findings)
