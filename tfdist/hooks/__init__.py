"""Hooks into TensorFlow, Keras and Python: one module for each place, and one table to install and undo them."""
