"""The IR of a query: relations, expressions and types, as plain data."""
