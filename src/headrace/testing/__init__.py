"""The test driver: runs a pipeline in a test, step by step, without Spark, threads or sleeps.

See ``docs/how-to/test-a-pipeline.md``.
"""

from headrace.observe.keys import PendingTimer
from headrace.testing.harness import CrashPoint, Harness, Produced, Watermark, drive

__all__ = ["CrashPoint", "Harness", "PendingTimer", "Produced", "Watermark", "drive"]
