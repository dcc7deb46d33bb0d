"""Fault list: the faults of ``scripts/stress/faults`` on one rank, and the expected end of the job."""

from __future__ import annotations

import dataclasses

# The program of a job. The last rank calls ``fault`` at step 10. The statements of a ``Fault`` replace the fields.
PROGRAM = """
import atexit, ctypes, multiprocessing, os, pathlib, signal, subprocess, sys, threading, time
import numpy as np
def child(number):
    return number * number
if __name__ == "__main__":
    import tfdist
    import tensorflow as tf
    rank, last = tfdist.rank(), tfdist.size() - 1
    w = tf.Variable(tf.ones([64, 64]))
    optimizer = tf.keras.optimizers.SGD(1e-3)
    factor, steps, width = 1.0, 20, 64
    def mark():
        pathlib.Path(os.environ["FAULT_MARK"]).write_text(str(time.time()))
    {before}
    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((x @ w) ** 2)
        optimizer.apply_gradients([(tape.gradient(loss, w), w)])
    def fault():
        global factor
        mark()
        {fault}
    number = 0
    while number < steps:
        if rank == last and number == 10:
            fault()
        step(tf.ones([8, 64]) * factor * (rank + 1))
        number += 1
    own = tfdist.all_gather(w.numpy()[None])
    assert all(np.array_equal(own[0], other, equal_nan=True) for other in own), "the ranks are apart"
    {after}
    print("trained to the end", flush=True)
"""


@dataclasses.dataclass(frozen=True)
class Fault:
    """One fault.

    Attributes:
      name: name for the table.
      fault: statements, on one line, that the last rank runs at step 10.
      says: texts that must all be in the output.
      ends: True if the exit code must be 0; False if it must not be 0.
      before: statements that all ranks run before training.
      after: statements that all ranks run after training.
      outside: signal to the launcher after the fault: ``kill`` or ``interrupt``; empty for none.
      stdout: file for the job's standard output; empty for the file of its errors.
      shm_megabytes: size of the job's /dev/shm in MB; 0 for the machine's /dev/shm.
    """

    name: str
    fault: str
    says: tuple[str, ...]
    ends: bool = False
    before: str = "pass"
    after: str = "pass"
    outside: str = ""
    stdout: str = ""
    shm_megabytes: int = 0


_WELL = ("trained to the end",)
_FORKED = "pool = multiprocessing.get_context('fork').Pool(2)"
_SPAWNED = "pool = multiprocessing.get_context('spawn').Pool(2); pool.map(child, range(4))"
_PROGRAMS = "programs = [subprocess.Popen(['sleep', '1000']) for _ in range(2)]"
_LEAVE = "print('trained to the end', flush=True); {}"
_STALLED = ("has waited", "TFDIST_STALL_ABORT_SECONDS")
FAULTS = (
    Fault("none", "pass", _WELL, ends=True),
    Fault("exception", "raise ValueError('bad luck')", ("failed:", "ValueError: bad luck")),
    Fault(
        "exception in a thread",
        "threading.Thread(target=lambda: 1 // 0).start(); time.sleep(1000)",
        ("failed in Thread-", "ZeroDivisionError"),
    ),
    Fault(
        "sys.exit(0) amid training",
        "sys.exit(0)",
        ("ended while rank", "All ranks must run the same collective calls, equally often"),
    ),
    Fault("sys.exit('message')", "sys.exit('no more')", ("no more",)),
    Fault("sys.exit(3)", "sys.exit(3)", ("with exit code 3",)),
    Fault("SystemExit", "raise SystemExit(0)", ("ended while rank",)),
    Fault("os._exit(0)", "os._exit(0)", ("ended while rank",)),
    Fault("os._exit(3)", "os._exit(3)", ("has left with exit code 3",)),
    Fault("exit of C", "ctypes.CDLL(None).exit(0)", ("has left with exit code 0",)),
    Fault("_exit of C", "ctypes.CDLL(None)._exit(0)", ("has left with exit code 0",)),
    Fault("exec", "os.execvp('true', ['true'])", ("ended while rank",)),
    Fault("exec of C", "ctypes.CDLL(None).execl(b'/bin/true', b'true', None)", ("has left with exit code 0",)),
    Fault("killed", "os.kill(os.getpid(), signal.SIGKILL)", ("was ended by SIGKILL",)),
    Fault("crash", "os.kill(os.getpid(), signal.SIGSEGV)", ("was ended by SIGSEGV",)),
    Fault("SIGTERM", "os.kill(os.getpid(), signal.SIGTERM)", ()),
    Fault("SIGHUP", "os.kill(os.getpid(), signal.SIGHUP)", ()),
    Fault("killed with forked workers", "os.kill(os.getpid(), signal.SIGKILL)", ("SIGKILL",), before=_FORKED),
    Fault("exception with forked workers", "raise ValueError('bad luck')", ("bad luck",), before=_FORKED),
    Fault("killed with spawned workers", "os.kill(os.getpid(), signal.SIGKILL)", ("SIGKILL",), before=_SPAWNED),
    Fault("killed with programs", "os.kill(os.getpid(), signal.SIGKILL)", ("SIGKILL",), before=_PROGRAMS),
    Fault("_exit of C with forked workers", "ctypes.CDLL(None)._exit(0)", ("exit code 0",), before=_FORKED),
    Fault("os._exit(0) at the end", "pass", _WELL, ends=True, after=_LEAVE.format("os._exit(0)")),
    Fault("os._exit(0) of one rank at the end", "pass", _WELL, ends=True, after=_LEAVE.format("rank or os._exit(0)")),
    Fault("exec at the end", "pass", _WELL, ends=True, after=_LEAVE.format("os.execvp('true', ['true'])")),
    Fault(
        "killed in a handler at the end", "pass", _WELL, ends=True, after="atexit.register(lambda: rank or os._exit(0))"
    ),
    Fault("a child that outlives its rank", "pass", _WELL, ends=True, after="subprocess.Popen(['sleep', '3'])"),
    Fault("SIGSTOP", "os.kill(os.getpid(), signal.SIGSTOP)", _STALLED),
    Fault("asleep", "time.sleep(1000)", (*_STALLED, "in fault (")),
    Fault("fewer steps", "globals().update(steps=10)", ("waits in", "an early stop that depends on the rank")),
    Fault("NaN on one rank", "factor = float('nan')", _WELL, ends=True, after="assert np.isnan(own[0]).any()"),
    Fault(
        "a call of one rank",
        "tfdist.all_reduce(np.ones(3))",
        ("All ranks must run the same operations in the same order",),
    ),
    Fault(
        "other shapes",
        "pass",
        ("float64 [4]", "look for a call that depends on the rank"),
        after="tfdist.all_reduce(np.ones(3 + (rank == last)))",
    ),
    Fault(
        "other graphs",
        "pass",
        ("w:0 float32 (64, 65)", "Every rank must build the same graph"),
        before="mark(); w = tf.Variable(tf.ones([64, 64 + (rank == last)]), name='w')",
    ),
    Fault("full disk", "open('/dev/full', 'w').write('x' * 100_000)", ("failed:", "No space left on device")),
    Fault(
        "full stdout",
        "sys.stdout = open('/dev/full', 'w'); print('x' * 100_000, flush=True)",
        ("failed:", "No space left on device"),
    ),
    Fault("full stdout of the launcher", "print('x' * 100_000, flush=True)", (), stdout="/dev/full"),
    Fault("full /dev/shm", "pass", (*_WELL, "/dev/shm has"), ends=True, shm_megabytes=3),
    Fault("fork", "os.fork() or sys.exit(0)", _WELL, ends=True),
    Fault(
        "spawn",
        "print(multiprocessing.get_context('spawn').Pool(2).map(child, range(4)))",
        (*_WELL, "[0, 1, 4, 9]"),
        ends=True,
    ),
    Fault("launcher killed", "pass", (), before="steps = 10**9", outside="kill"),
    Fault("interrupted", "pass", (), before="steps = 10**9", outside="interrupt"),
)
