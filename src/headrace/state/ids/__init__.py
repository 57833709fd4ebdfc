"""The ids of records that were seen before."""
