"""Recorder and hooks inside the user's processes; they never import polars."""
