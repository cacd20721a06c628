"""A dataset's pipeline taken apart: where it stands, its ops, their inputs, and how each is run."""
