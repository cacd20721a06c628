"""What runs inside the user's processes: the recorder, and the hooks that feed it.

Ground floor and torch only, never polars (it hangs forked children). The one place that touches
torch's private modules. Whatever is put on here is taken off again, in the order last on, first
off.
"""
