"""Sampled stacks: what they are made of, and which of the user's functions they lie in."""

from stallscope.analyze.stacks.difference import CHANGES, Difference, diff
from stallscope.analyze.stacks.shares import TABLE, table

__all__ = ["CHANGES", "TABLE", "Difference", "diff", "table"]
