"""Resident workers: tasks of Spark that stay, so that a step costs no job.

The *residents* of a pipeline are one task for each worker, the only one of a long job, placed and
started by Spark like any other. Each connects back to the driver, and runs what the driver orders until
one of the two has gone. What it runs is what a task of a short job would run. So a step is the same,
whoever runs it.

``links`` connects the two ends. ``orders`` is what they say. ``resident`` is the end in the task;
``residents`` that in the driver, for all of them. ``keeper`` decides when they are there, and ``slots``
sees who waits for the slots that they take.
"""
