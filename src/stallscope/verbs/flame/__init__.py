"""`ss.flame`: the workers' stacks, sampled and merged."""
