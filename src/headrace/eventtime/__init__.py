"""Event time: timestamps as integers of microseconds, watermarks, and when a timer is due."""
