"""The two kinds of runs of the program, training and translation, built from the other packages."""
