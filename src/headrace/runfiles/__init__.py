"""The file format of state: sorted, immutable runs of rows, and how several runs are merged."""
