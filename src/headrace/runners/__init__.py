"""Runners: where the tasks of a step run. All of them call the same functions of ``tasks``."""
