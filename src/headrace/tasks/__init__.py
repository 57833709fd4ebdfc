"""A step inside a worker: read, route, apply computations, report.

Nothing here imports Spark. No result depends on a clock or on chance; a monotonic clock only times
the phases of a report.
"""
