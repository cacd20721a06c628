"""`ss.ladder`: throughput of the loop, with one more cost removed on each rung."""
