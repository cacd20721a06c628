"""What a loop stands still for: each stall cut up by the way of the batch it waited for."""
