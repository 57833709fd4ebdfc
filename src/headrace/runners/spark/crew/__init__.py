"""Resident workers: tasks of Spark that stay, so that a step costs no job.

A *crew* has a member for each worker: a task of one long job, placed and started by Spark like any
other. It connects back to the driver, and runs what the driver orders until one of the two has
gone. What it runs is what a task of a job would run. So a step is the same, whoever runs it.

``links`` connects the two ends. ``orders`` is what they say. ``member`` is the end in the task;
``crew`` that in the driver. ``keeper`` decides when there is a crew, and ``slots`` sees who waits
for the slots that it takes.
"""
