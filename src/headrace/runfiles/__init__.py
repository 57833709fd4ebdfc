"""The file format of state: sorted, immutable runs of rows, and how several are read as one."""
