"""Planted bugs are found: some of them here, all of them in the soak."""

from __future__ import annotations

import subprocess

import pytest

from tests.planted.bugs import BUGS, BY_NAME, Bug
from tests.planted.planting import PATCHES, ROOT, patch_of, search
from tests.support.results import record

QUICK = ["mixed_attempts", "lost_reply", "no_checksum"]


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_each_patch_still_fits(bug: Bug) -> None:
    subprocess.run(
        ["git", "apply", "--check", str(patch_of(bug))], cwd=ROOT, check=True, capture_output=True
    )


def test_there_is_no_patch_that_nobody_looks_for() -> None:
    assert {path.stem for path in PATCHES.iterdir()} == set(BY_NAME)
    assert len(BUGS) >= 25


@pytest.mark.parametrize("name", QUICK)
def test_some_planted_bugs_are_found(name: str) -> None:
    finding = search(BY_NAME[name])
    assert finding.found, finding.said


@pytest.mark.soak
def test_all_planted_bugs_are_found() -> None:
    findings = [search(bug) for bug in BUGS]
    missed = [finding.name for finding in findings if not finding.found]
    record("planted", {"planted": len(findings), "missed": missed})
    assert not missed
