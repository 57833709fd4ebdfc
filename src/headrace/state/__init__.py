"""The state of a worker in memory, for per-record code, columnar code and record ids."""
