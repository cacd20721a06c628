"""Measurement of variants against each other: two instruments, one rule of significance."""
