"""Horovod's names: cases for several ranks, in jobs of their own, since ``hvd.init`` ends what happens by itself."""
