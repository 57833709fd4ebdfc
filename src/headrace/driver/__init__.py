"""The driver: carries out the instructions of the coordinator, and reports back to it."""
