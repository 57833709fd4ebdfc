"""The ids of records that have been seen."""
