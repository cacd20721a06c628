"""What the rungs of the ladder keep in memory: samples on their way, and whole batches."""
