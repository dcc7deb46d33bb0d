"""Compat: what tfdist must know of TensorFlow's and Keras's insides, said in its own words; in no other room but
``hooks``, which replaces some of it.

Read in TensorFlow 2.16.2, 2.21.0 and 2.22.0rc0, and in Keras 3.15 and 3.16. A name that only some of them have is
marked "since" or "until" where it stands: to drop a version, look for it there and in ``hooks``. Each function names
the file that it was read in, and has a test in ``tests/tfdist/compat``, whose name says what has moved where a new
version fails it.
"""
