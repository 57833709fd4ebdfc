"""Event time: timestamps as integers of microseconds, time zones, and watermark strategies."""
