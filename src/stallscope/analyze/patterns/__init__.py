"""When and why a loop stands still: patterns in time, causes, and the chance of being wrong."""
