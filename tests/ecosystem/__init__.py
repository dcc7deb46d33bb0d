"""Packages on top of TensorFlow, used as documented: N ranks with batch B / N equal one process with batch B.

``scripts/test --ecosystem`` runs these tests in an environment that has the packages. Models are tiny and have random
initial weights: nothing is downloaded.
"""
