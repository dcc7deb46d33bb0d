"""Collectives as TensorFlow operations: gradient markers, the state of graphs and functions, op builder, average."""
