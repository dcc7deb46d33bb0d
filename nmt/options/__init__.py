"""Every option of the program, once: a new one is a line in a `*_options.py` (flag, check, help, setting).

These are flags of one program, which its runs keep. The settings of `tfdist` are variables of the environment, for any
program and before it begins: that is why there are two kinds.
"""
