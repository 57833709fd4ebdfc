"""Storage that somebody of ill will has written: well sealed, and without sense."""
