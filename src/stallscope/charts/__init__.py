"""One file for each picture: `figure(result)` draws it, its title is the answer."""
