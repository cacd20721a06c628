"""The user's loop under our control: replayed, timed, cached, on a device."""
