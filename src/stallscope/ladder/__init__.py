"""`ss.ladder`: the loop with one more cost removed on each rung."""
