"""Where the data lies: what the storage gives, and what other layouts of the data would."""
