"""One folder for each verb: what the notebooks and the command call."""
