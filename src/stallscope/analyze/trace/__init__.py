"""A run as one timeline in the Trace Event Format, which Perfetto and chrome://tracing open."""
