"""One verb, one file: where measuring and judging meet."""
