"""A session that Headrace starts by itself listens on loopback alone."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

_LISTENING = """
import json, os, sys
from pathlib import Path
from headrace.runners.spark import SparkRunner

def family(root):
    children = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        children.setdefault(int(fields[1]), []).append(int(path.parent.name))
    found, todo = [], [root]
    while todo:
        found.append(todo.pop())
        todo += children.get(found[-1], [])
    return found

runner = SparkRunner()
sum_ = runner._sc.parallelize(range(4), 2).map(lambda n: n).sum()
inodes = set()
for pid in family(os.getpid()):
    for fd in Path(f"/proc/{pid}/fd").glob("*"):
        try:
            target = os.readlink(fd)
        except OSError:
            continue
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
found = []
for table in ("tcp", "tcp6"):
    for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and fields[9] in inodes:
            found.append(fields[1].partition(":")[0])
print("found " + json.dumps([sum_, found]))
runner._sc.stop()
"""
_LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}


@pytest.mark.spark
def test_a_local_session_listens_on_loopback_alone() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", _LISTENING], capture_output=True, text=True, check=False, timeout=120
    )
    line = next((at for at in ran.stdout.splitlines() if at.startswith("found ")), "")
    assert line, ran.stderr[-2_000:]
    total, addresses = json.loads(line.removeprefix("found "))
    assert total == 6 and len(addresses) >= 2
    assert set(addresses) <= _LOOPBACK


@pytest.mark.spark
def test_the_doctor_finds_a_local_session_well() -> None:
    command = [sys.executable, "-m", "headrace.cli", "doctor", "--master", "local[2]"]
    ran = subprocess.run(
        [*command, "--output", "json"], capture_output=True, text=True, check=False, timeout=300
    )
    found = {of["check"]: of for of in json.loads(ran.stdout)["findings"]}
    assert ran.returncode == 0, (ran.stdout, ran.stderr)
    assert found["spark"]["facts"]["slots"] == 2
    assert {found[check]["state"] for check in ("spark", "executors", "clocks")} == {"ok"}
