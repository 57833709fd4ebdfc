"""From a plan of Catalyst, as plain data, to the IR. Nothing here knows Spark."""
