"""The two runs of the program, training and translation, put together from the rooms below."""
