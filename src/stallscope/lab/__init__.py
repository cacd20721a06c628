"""Guided notebooks: copies for the user, opened in JupyterLab."""
