"""Packages on top of TensorFlow, by their own ways: N ranks with batch B / N each do what one process does with B.

``scripts/test --ecosystem`` runs these in an environment that has the packages. Models are tiny, and begin at random:
nothing is downloaded.
"""
