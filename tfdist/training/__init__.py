"""Training: what tfdist changes in a training program: gradient rewrite, first step, join, data shards, ``fit``."""
