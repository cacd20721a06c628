"""`ss.diagnose`: the verdict, from a run, a ladder, stacks and resources."""
