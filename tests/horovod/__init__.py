"""Cases for Horovod's names, in separate jobs: after ``hvd.init``, only wrapped optimizers and tapes average."""
