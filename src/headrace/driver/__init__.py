"""The driver: carries out the coordinator's instructions, and reports the results back to it."""
