"""`ss.experiments`: what would make the step itself faster, tried on it and put back."""
