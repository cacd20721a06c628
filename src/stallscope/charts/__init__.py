"""Pictures: a function draws a result, and its title is the answer."""
