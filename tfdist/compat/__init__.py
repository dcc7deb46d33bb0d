"""Compat: functions that use internals of TensorFlow and Keras. Only ``hooks``, which replaces some, uses them, too.

The internals were read in TensorFlow 2.16.2, 2.21.0 and 2.22.0rc0, and in Keras 3.15 and 3.16. A name that only some
versions have is marked "since" or "until": to drop a version, search for these marks here and in ``hooks``. Each
function names the source file of the internals. It has a test in ``tests/tfdist/compat``. If a new version fails the
test, the test's name says what has changed.
"""
