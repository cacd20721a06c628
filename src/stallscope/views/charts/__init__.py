"""One module a picture: `figure(run)` draws it, its title is the answer."""
