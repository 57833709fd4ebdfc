"""Runners: where the tasks of a step run. The same stage functions everywhere."""
