"""The session that Headrace starts: its options, its log files, and what is shown of its output."""
