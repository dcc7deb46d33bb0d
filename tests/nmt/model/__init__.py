"""The model: families against NumPy ones, and the parts that they share."""
