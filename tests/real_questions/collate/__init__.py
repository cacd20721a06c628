"""Questions with this cause."""
