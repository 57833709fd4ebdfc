"""What must not grow while a pipeline runs on Spark: files, memory, threads, sockets."""

from __future__ import annotations

import gc
import threading
from pathlib import Path
from typing import Any

import psutil

#: How many times as much there may be in the last third of a run as in the one before.
SLACK = {
    "storage_files": 1.2,
    "storage_kib": 1.2,
    "shuffle_files": 1.0,
    "driver_rss_mib": 1.1,
    "python_rss_mib": 1.1,
    "jvm_rss_mib": 1.15,
    "jvm_heap_mib": 1.15,
    "jvm_threads": 1.1,
    "driver_threads": 1.0,
    "driver_files_and_sockets": 1.0,
    "python_workers": 1.0,
}


def session_settings(local: Path) -> dict[str, str]:
    """Return the settings of a session whose memory can be seen to stay level.

    The heap has its full size from the start: else it may reach it at any time, and look like a leak.
    """
    return {
        "spark.local.dir": str(local),
        "spark.driver.memory": "512m",
        "spark.driver.extraJavaOptions": "-Xms512m -XX:+AlwaysPreTouch",
    }


def measure(store: Path, local: Path, jvm: Any) -> dict[str, int]:
    """Return what must not grow."""
    gc.collect()
    jvm.java.lang.System.gc()
    heap = jvm.java.lang.Runtime.getRuntime()
    files = [path for path in store.rglob("*") if path.is_file()]
    shuffles = [path for path in local.rglob("shuffle_*") if path.is_file()]
    own = psutil.Process()
    children = own.children(recursive=True)
    java = [process for process in children if "java" in process.name()]
    python = [process for process in children if "python" in process.name()]
    return {
        "storage_files": len(files),
        "storage_kib": sum(path.stat().st_size for path in files) // 1024,
        "shuffle_files": len(shuffles),
        "driver_rss_mib": own.memory_info().rss >> 20,
        "python_rss_mib": sum(process.memory_info().rss for process in python) >> 20,
        "jvm_rss_mib": sum(process.memory_info().rss for process in java) >> 20,
        "jvm_heap_mib": (heap.totalMemory() - heap.freeMemory()) >> 20,
        "jvm_threads": sum(process.num_threads() for process in java),
        "driver_threads": threading.active_count(),
        "driver_files_and_sockets": own.num_fds(),
        "python_workers": len(python),
    }


def check_flat(seen: list[dict[str, int]]) -> None:
    """Check that nothing has grown from the second third of a run to the last."""
    early, late = seen[len(seen) // 3 : len(seen) * 2 // 3], seen[len(seen) * 2 // 3 :]
    for name, slack in SLACK.items():
        first, last = max(row[name] for row in early), max(row[name] for row in late)
        assert last <= first * slack + 4, f"{name} grew from {first} to {last}"
