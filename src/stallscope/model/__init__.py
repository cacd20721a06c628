"""Accounting of a run: exposed time, pace, patterns, costs; and the simulator."""
