"""Sampling what the machine and the processes of a recording use, while it records."""
