"""Copies the guided notebooks and opens them in JupyterLab."""
