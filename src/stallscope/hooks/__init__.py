"""What runs inside the user's processes: the recorder and the hooks that feed it; never polars."""
