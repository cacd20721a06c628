"""`ss.experiments`: changes that speed the step up, tried on the step and undone."""
