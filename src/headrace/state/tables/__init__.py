"""State of columnar computations: tables of many keys, with an index over them."""
