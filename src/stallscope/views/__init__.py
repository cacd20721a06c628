"""A result becomes something to look at; matplotlib and ipywidgets are used nowhere else."""
