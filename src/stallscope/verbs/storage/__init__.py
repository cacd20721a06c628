"""Speed of the storage under a loader's files, and of other layouts of the same data."""
