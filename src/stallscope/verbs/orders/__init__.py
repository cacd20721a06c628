"""`ss.orders`: transform orders that give the same data in less time."""
