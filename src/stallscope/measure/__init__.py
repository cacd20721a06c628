"""Starts and times things: no judgement, no drawing."""
