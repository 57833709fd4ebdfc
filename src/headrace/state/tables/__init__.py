"""State of columnar computations: tables with rows of many keys, and an index over them."""
