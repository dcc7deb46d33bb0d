"""Training: what tfdist changes in a training program: a module for each style, join, data shards, ``fit``."""
