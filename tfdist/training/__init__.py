"""What data-parallel training does to a program: gradient rewrite, first step, join, data shards, learning rate."""
