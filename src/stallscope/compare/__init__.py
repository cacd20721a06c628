"""Two or more recorded runs beside each other: what changed, and by how much for sure."""
