"""The parts of `ss.orders`: the pipeline at hand, recipes for new loaders, and their race."""
