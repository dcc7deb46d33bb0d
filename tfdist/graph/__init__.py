"""Collectives as TensorFlow operations: the state of graphs and functions, the op builder, exchanges in the graph."""
