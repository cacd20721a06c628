"""`ss.compare`: significant differences between recorded runs."""
