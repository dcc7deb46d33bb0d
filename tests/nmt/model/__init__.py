"""Models: each family against a NumPy model, and the parts that families share."""
