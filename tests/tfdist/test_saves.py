"""Saves in jobs that fail, end, or are slow. tests/multirank/cases_saves.py has the other saves of all ranks."""

from __future__ import annotations

from pathlib import Path

import pytest
import tensorflow as tf

from tests.tfdist.test_failures import assert_ended, job

SAVING = """
start()
own = v1.get_variable("own", [1000], initializer=v1.zeros_initializer(), trainable=False)
session.run(own.initializer)
session.run(step)
own.load(np.full(1000, float(rank)), session)
saver = v1.train.Saver()
folder = os.path.dirname(os.path.abspath(__file__))
def save(name="all"):
    return saver.save(session, f"{folder}/{name}")
"""


def saved(directory: Path, name: str = "all") -> float:
    (value,) = set(tf.train.load_checkpoint(str(directory / name)).get_tensor("own").tolist())
    return float(value)


def test_the_program_ends_after_a_save_of_all_ranks(tmp_path: Path) -> None:
    finished = job(
        tmp_path,
        SAVING
        + """
time.sleep(2 * (rank == 0))
save("first")
time.sleep(2 * (rank == 2))
save("second")
""",
        ranks=3,
    )
    assert finished.code == 0, finished
    assert saved(tmp_path, "first") == saved(tmp_path, "second") == 0


def test_ranks_that_are_left_save_at_once(tmp_path: Path) -> None:
    """After a rank is lost, each remaining rank saves on its own; under one path they save one after the other."""
    finished = job(
        tmp_path,
        SAVING
        + """
try:
    for number in range(100):
        if rank == 2 and number == 3:
            os._exit(0)
        session.run(step)
except tfdist.PeerError:
    save(f"emergency-{rank}")
    raise
finally:
    began = time.monotonic()
    save()
    print("saved in time" if time.monotonic() - began < 5 else "waited", flush=True)
    time.sleep(2)  # the first to end ends the job
""",
        ranks=3,
    )
    assert_ended(finished, "rank 2 ended while rank 0 waits")
    assert finished.output.count("saved in time") == 2, finished
    assert (saved(tmp_path, "emergency-0"), saved(tmp_path, "emergency-1")) == (0, 1)
    assert saved(tmp_path) in (0, 1)


def test_a_save_that_fails_is_told_once(tmp_path: Path) -> None:
    """All ranks raise rank 0's exception, and only rank 0 prints it."""
    finished = job(tmp_path, SAVING + 'open(f"{folder}/file", "w").close()\nsave("file/all")', ranks=2)
    assert_ended(finished, "rank 0 of 2 failed", "Parent directory of")
    assert finished.errors.count("ValueError: Parent directory of") == 1


@pytest.mark.long("12 seconds; what is told stands in transport/test_stall_detection.py")
def test_a_long_save_is_waited_for(tmp_path: Path) -> None:
    finished = job(
        tmp_path,
        SAVING
        + """
run = session.run
def slowly(*arguments, **more):
    if "slow" in str(arguments[1:]):
        time.sleep(6)
    return run(*arguments, **more)
session.run = slowly
save("slow")
session.run(step)
if rank == 0:
    save("slow")
session.run(step)
""",
        TFDIST_STALL_SECONDS="2",
        TFDIST_STALL_ABORT_SECONDS="4",
    )
    assert finished.code == 0, finished
    said = f"the saving of {tmp_path}/slow"
    assert f"rank 1 waited 2 s in {said} by rank 0; missing: rank 0 alone with {said}" in finished.errors
    assert "in average of gradients" in finished.errors


@pytest.mark.long("12 seconds; the deadline is that of other waits")
def test_a_rank_that_does_not_come_to_a_save(tmp_path: Path) -> None:
    finished = job(
        tmp_path,
        SAVING + "time.sleep(1000 * (rank == 0))\nsave()",
        TFDIST_STALL_SECONDS="2",
        TFDIST_STALL_ABORT_SECONDS="4",
    )
    assert_ended(finished, f"rank 1 has waited 4 s in the saving of {tmp_path}/all by rank 0", "busy outside")


@pytest.mark.long("what is pending, and what is not")
def test_a_wait_for_a_save_that_is_interrupted_leaves_the_rank_in_step(tmp_path: Path) -> None:
    finished = job(
        tmp_path,
        SAVING
        + """
def interrupt(*_):
    raise KeyError("interrupted")
signal.signal(signal.SIGALRM, interrupt)
signal.alarm(2 * rank)
try:
    time.sleep(4 * (rank == 0))
    save()
except KeyError:
    print("interrupted", flush=True)
session.run(step)
save("again")
""",
    )
    assert finished.code == 0 and finished.output.count("interrupted") == 1, finished
    assert saved(tmp_path) == saved(tmp_path, "again") == 0
