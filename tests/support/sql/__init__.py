"""What tests of SQL share: a plain interpreter of the IR, and comparing answers."""
