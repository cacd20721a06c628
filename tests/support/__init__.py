"""Helpers of many tests: built results, loaders, pipelines, and checks for leftovers."""
