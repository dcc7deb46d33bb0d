"""Replicas: variables that ranks hold alike. The ranks begin with rank 0's values, and compare theirs now and then."""
