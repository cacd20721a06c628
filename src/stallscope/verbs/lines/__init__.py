"""`ss.lines`: the slow lines of datasets, transforms and collate functions."""
