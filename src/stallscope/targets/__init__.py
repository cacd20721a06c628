"""What the user points at: a loader, a folder, shards, a function that makes one."""
