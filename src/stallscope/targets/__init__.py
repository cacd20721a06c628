"""Targets of a measurement: a loader, a folder, shards, a function that returns a loader."""
