"""What the trials of `ss.orders` say: the search, whether data is the same, and the table."""
