"""Options: each flag of the program is defined once, as one line of a `*_options.py` (flag, check, help).

These flags belong to the program `nmt`, and each run saves them. `tfdist` serves any program and reads its settings
before the program begins: they are therefore environment variables.
"""
