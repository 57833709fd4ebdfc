"""Planted bugs are found: what switches a protection off in the suite, all of them in the soak."""

from __future__ import annotations

import subprocess
from dataclasses import asdict

import pytest

from tests.faults.planted.bugs import BUGS, BY_NAME, CONTROLS, Bug
from tests.faults.planted.planting import (
    PATCHES,
    ROOT,
    false_alarms,
    patch_of,
    search,
    search_all,
    told,
)
from tests.support.results import recording


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_each_patch_still_fits(bug: Bug) -> None:
    subprocess.run(
        ["git", "apply", "--check", str(patch_of(bug))], cwd=ROOT, check=True, capture_output=True
    )


def test_there_is_no_patch_that_nobody_looks_for() -> None:
    assert {path.stem for path in PATCHES.iterdir()} == set(BY_NAME)
    assert len(BUGS) >= 25


def test_what_protects_has_a_negative_control() -> None:
    protections = {"fencing", "comparison of digests", "checksums", "boundary of deletions"}
    assert {bug.control for bug in CONTROLS} == protections


@pytest.mark.parametrize("bug", CONTROLS, ids=lambda bug: bug.name)
@pytest.mark.drawn(1)
def test_without_a_protection_the_suite_fails(bug: Bug) -> None:
    finding = search(bug)
    assert finding.found, finding.said


@pytest.mark.soak
def test_all_planted_bugs_are_found() -> None:
    """What finds them passes where there are none, in a copy as well, or it would find everything."""
    with recording("planted") as keep:
        findings = list(search_all(BUGS, jobs=2))
        print(*map(told, findings), sep="\n")
        missed = [finding.name for finding in findings if not finding.found]
        alarms = false_alarms(BUGS, jobs=2)
        keep(
            {
                "missed": missed,
                "false_alarms": alarms,
                "findings": [asdict(finding) for finding in findings],
            }
        )
        assert not missed
        assert not alarms, "\n".join(alarms.values())
