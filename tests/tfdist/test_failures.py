"""Every failure of one rank ends the whole job soon, with a message that says where. Each case is a job of its own."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.launch import Finished, mpirun, run

# Most of this time is for starting Python and TensorFlow; ten seconds are for ending the job.
START_SECONDS = 25
SCRIPT = """
import os, signal, sys, time
import numpy as np
import tfdist
import tensorflow as tf
v1 = tf.compat.v1
v1.disable_eager_execution()
rank = tfdist.rank()
def start(*shape, name="w"):
    global w, step, session
    w = v1.get_variable(name, shape or [3, 4], initializer=v1.ones_initializer())
    step = v1.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_sum(w * float(rank)))
    session = v1.Session()
    session.run([v.initializer for v in v1.global_variables()])
"""


def job(directory: Path, body: str, ranks: int = 2, timeout_seconds: float = 60, **settings: str) -> Finished:
    script = directory / "script.py"
    script.write_text(SCRIPT + textwrap.dedent(body))
    return mpirun(ranks, [str(script)], timeout_seconds, settings)


def assert_ended(finished: Finished, *said: str, seconds: float = START_SECONDS + 10) -> None:
    assert finished.code not in (None, 0), finished
    assert finished.seconds < seconds, finished
    for words in said:
        assert words in finished.errors, finished.errors


ON_RANK_0 = {
    "fit": """
        import keras
        model = keras.Sequential([keras.Input([3]), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        if rank == 0:
            model.fit(np.ones([8, 3]), np.ones([8, 1]), verbose=0)
        """,
    "a call": """
        if rank == 0:
            print(tfdist.all_reduce(1.0))
        """,
    "a call after steps": """
        v1.disable_eager_execution()
        start()
        for _ in range(3):
            session.run(step)
        if rank == 0:
            tfdist.barrier()
        """,
}


@pytest.mark.parametrize("what", ON_RANK_0)
def test_what_needs_all_ranks_on_one_of_them(tmp_path: Path, what: str) -> None:
    body = ON_RANK_0[what]
    script = SCRIPT.replace("v1.disable_eager_execution()\n", "")
    (tmp_path / "script.py").write_text(script + textwrap.dedent(body))
    finished = mpirun(2, [str(tmp_path / "script.py")], 60)
    assert_ended(finished, "rank 1 ended while rank 0 waits in", "`if tfdist.rank() == 0:`")


def test_an_exception_on_one_rank(tmp_path: Path) -> None:
    finished = job(
        tmp_path,
        """
        start()
        for number in range(1000):
            if rank == 1 and number == 3:
                raise ValueError("bad luck")
            session.run(step)
        """,
    )
    assert_ended(finished, "rank 1 of 2 failed", "ValueError: bad luck", "line 1")


@pytest.mark.long("nmt/runs/test_ranks_of_the_program.py has one message, too")
def test_an_exception_on_all_ranks_is_told_once(tmp_path: Path) -> None:
    finished = job(tmp_path, "raise ValueError('bad luck')", ranks=3)
    assert_ended(finished, "rank 0 of 3 failed")
    assert finished.errors.count("ValueError: bad luck") == 1


def test_a_rank_that_exits(tmp_path: Path) -> None:
    finished = job(
        tmp_path,
        """
        start()
        for number in range(6 if rank == 1 else 8):
            session.run(step)
        """,
    )
    assert_ended(finished, "rank 1 ended while rank 0 waits in average of gradients 0, step 7", "tfdist.shard")


def test_work_alone_is_excused(tmp_path: Path) -> None:
    finished = job(
        tmp_path,
        """
        start()
        session.run(step)
        if rank == 1:
            with tfdist.alone("a long evaluation"):
                time.sleep(7)
        session.run(step)
        """,
        TFDIST_STALL_SECONDS="2",
        TFDIST_STALL_ABORT_SECONDS="3",
    )
    assert finished.code == 0, finished
    assert "missing: rank 1 alone with a long evaluation" in finished.errors


def test_different_steps_on_different_ranks(tmp_path: Path) -> None:
    finished = job(
        tmp_path,
        """
        start()
        total = tfdist.all_reduce(tf.constant(1.0), "sum")
        session.run([step, total])
        session.run(step if rank == 0 else total)
        """,
    )
    assert_ended(finished, "All ranks must run the same operations in the same order")


@pytest.mark.parametrize(
    ("build", "said"),
    [
        ("start(3, 4 + rank)", ["rank 0: gradient w float32 (3, 4)", "rank 1: gradient w float32 (3, 5)"]),
        pytest.param(
            "start(3, 4, name=f'w{rank}')",
            ["rank 0: gradient w0 float32", "rank 1: gradient w1 float32"],
            marks=pytest.mark.long("the same comparison as of shapes"),
        ),
        pytest.param(
            "start(); rank == 0 and tfdist.all_reduce(w)",
            ["rank 0: all_reduce", "rank 1: nothing more"],
            marks=pytest.mark.long("the same comparison as of shapes"),
        ),
    ],
)
def test_different_graphs(tmp_path: Path, build: str, said: list[str]) -> None:
    assert_ended(job(tmp_path, f"{build}\nsession.run(step)"), "graphs differ", *said)


def test_different_shapes_at_run_time(tmp_path: Path) -> None:
    finished = job(tmp_path, "tfdist.all_reduce(np.ones(3 + rank))")
    assert_ended(
        finished,
        "rank 0 is in tfdist.all_reduce (mean) of float64 [3]",
        "rank 1 in tfdist.all_reduce (mean) of float64 [4]",
    )


@pytest.mark.long("test_an_exception_on_one_rank is one message too")
def test_abort_prints_one_message(tmp_path: Path) -> None:
    finished = job(tmp_path, "tfdist.abort('config.json is missing', exit_code=3)", ranks=3)
    assert_ended(finished, "config.json is missing")
    assert finished.errors.count("config.json is missing") == 1


def test_mpi_that_cannot_be_loaded(tmp_path: Path) -> None:
    """If the launcher has no MPI library, one message gives the remedy, without a traceback."""
    (tmp_path / "mpi4py").mkdir()
    (tmp_path / "mpi4py" / "__init__.py").write_text("class rc: initialize = finalize = threads = True")
    (tmp_path / "mpi4py" / "MPI.py").write_text("raise RuntimeError('cannot load MPI library')")
    finished = mpirun(2, ["-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import tfdist"], 60)
    assert_ended(finished, "MPI cannot be loaded (cannot load MPI library)", "pip install mpich")
    assert finished.errors.count("pip install mpich") == 1
    assert "Traceback" not in finished.errors


def test_mpirun_of_another_mpi() -> None:
    """Each process sees a job of one rank; the launcher's variables show that there are more."""
    launcher = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "0"}
    finished = run([sys.executable, "-c", "import tfdist"], 60, launcher)
    assert finished.code == 1
    assert "the launcher started 2 processes, but MPI sees a job of 1" in finished.errors
    assert "Traceback" not in finished.errors


def test_settings_that_differ_between_ranks(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    own = "os.environ.get('PMI_RANK', os.environ.get('OMPI_COMM_WORLD_RANK'))"
    script.write_text(f"import os\nos.environ['TFDIST_ENGINE'] = ['mpi', 'auto'][int({own})]\nimport tfdist\n")
    finished = mpirun(2, [str(script)], 60)
    assert_ended(finished, "TFDIST_ENGINE is 'mpi' on rank 0, but 'auto' on rank 1")
    assert "Traceback" not in finished.errors


def test_a_variable_that_is_no_setting_refuses_no_job() -> None:
    finished = mpirun(2, ["-c", "import tfdist"], 60, {"TFDIST_ROOT": "/opt/tfdist"})
    assert finished.code == 0, finished
    assert finished.errors.count("TFDIST_ROOT: no settings of tfdist, without effect") == 1


def test_configuring_ranks_differently(tmp_path: Path) -> None:
    finished = job(tmp_path, "tfdist.configure(bucket_mb=1 + rank)\nstart()\nsession.run(step)")
    assert_ended(finished, "TFDIST_BUCKET_MB is 1.0 on rank 0, but 2.0 on rank 1")


UNMAPPABLE = """
        from tfdist.processes import mapped_memory
        def refused(*arguments):
            raise OSError(14, "Bad address")
        def refuse():
            mapped_memory.mapped = refused
            mapped_memory.MappedMemory.number = lambda self, index, place: -1  # none of those that are mapped already
        """


def test_a_rank_whose_memory_cannot_be_mapped_any_more(tmp_path: Path) -> None:
    body = """
        start(1 << 18)
        session.run(step)
        if rank == 1:
            refuse()
        session.run(step)
        """
    finished = job(tmp_path, UNMAPPABLE + body)
    assert_ended(finished, "the memory of rank 0 cannot be mapped", "Bad address", "step 2, bucket 0 (w)")


@pytest.mark.parametrize(
    "node_size", ["0", pytest.param("1", marks=pytest.mark.long("tests/cluster/test_faults.py has other machines"))]
)
def test_a_rank_that_stops_is_named_with_bucket_and_step(tmp_path: Path, node_size: str) -> None:
    """The rank is on the same machine, or counts as being on another machine."""
    finished = job(
        tmp_path,
        """
        start()
        def slow():
            time.sleep(8)  # LINE
        for number in range(6):
            if rank == 1 and number == 4:
                slow()
            session.run(step)
        """,
        TFDIST_STALL_SECONDS="2",
        TFDIST_STALL_ABORT_SECONDS="4",
        TFDIST_NODE_SIZE=node_size,
    )
    line = 1 + next(n for n, text in enumerate((tmp_path / "script.py").read_text().splitlines()) if "# LINE" in text)
    missing = f"missing: rank 1 busy outside tfdist, in slow (script.py:{line})"
    assert_ended(finished, "rank 0 waited", "step 5, bucket 0 (w)", missing)


@pytest.mark.long("test_different_steps_on_different_ranks, and cases_engine joins")
def test_join_cannot_stand_in_for_a_broadcast(tmp_path: Path) -> None:
    finished = job(
        tmp_path,
        """
        start()
        value = tfdist.broadcast(w)
        for number in range(3 + rank):
            session.run([step, value])
        tfdist.join()
        """,
    )
    assert_ended(finished, "tfdist.join cannot stand in for this rank")


@pytest.mark.parametrize(
    "setting", ["TFDIST_TRACE_FOLDER", pytest.param("TFDIST_TIMELINE", marks=pytest.mark.long("the same file"))]
)
def test_a_killed_rank_leaves_what_it_did_last(tmp_path: Path, setting: str) -> None:
    where = tmp_path / "trace"
    settings: dict[str, Any] = {setting: str(where)}
    finished = job(
        tmp_path,
        """
        start()
        def busy():
            time.sleep(2.5)
            os.kill(os.getpid(), signal.SIGKILL)
        for number in range(5):
            if rank == 1 and number == 3:
                busy()
            session.run(step)
        """,
        **settings,
    )
    assert finished.code not in (None, 0), finished
    files = list(where.glob("*/rank-*") if where.is_dir() else tmp_path.glob("trace.rank-*"))
    assert len(files) == 2, files
    told = run([sys.executable, "-m", "tfdist", "trace", *map(str, files)], 60)
    assert "first difference: average of gradients" in told.output, told
    assert "rank 1 did not come" in told.output
    assert "    busy (" in told.output


def test_a_caught_peer_error_leaves_memory_alone(tmp_path: Path) -> None:
    """A late rank still reads and writes the published memory after the others have given up waiting."""
    finished = job(
        tmp_path,
        """
        import gc
        elements = 1 << 18
        start(elements)
        session.run(step)
        if rank == 1:
            time.sleep(7)
        try:
            session.run(step)
            raise SystemExit(f"rank {rank} went on")
        except tfdist.PeerError as error:
            first = str(error)
        if rank == 0:
            np.save("DIRECTORY/saved.npy", session.run(w))
            session.close()
            del session, step, w
            v1.reset_default_graph()
            gc.collect()
            others = [np.full(elements + k, 7, np.float32) for k in (0, 0, 16, 16, 32)]
            begun = time.monotonic()
            for call in (tfdist.barrier, lambda: tfdist.new_group([0, 1]), lambda: tfdist.all_reduce(np.ones(3))):
                try:
                    call()
                    raise SystemExit("not refused")
                except tfdist.PeerError as error:
                    assert "is refused: rank 0 has given up" in str(error) and first in str(error), error
            assert time.monotonic() - begun < 1
            while not os.path.exists("DIRECTORY/tried"):
                time.sleep(0.1)
            assert all((other == 7).all() for other in others), "written to"
            print("unharmed")
        else:
            assert "copied" in first, first
            open("DIRECTORY/tried", "w").close()
        """.replace("DIRECTORY", str(tmp_path)),
        TFDIST_STALL_ABORT_SECONDS="3",
    )
    assert finished.code == 0 and "unharmed" in finished.output, finished
    np.testing.assert_allclose(np.load(tmp_path / "saved.npy"), 1 - 0.1 * 0.5, rtol=1e-6)


@pytest.mark.long("test_a_caught_peer_error_leaves_memory_alone")
def test_an_emergency_checkpoint(tmp_path: Path) -> None:
    """A checkpoint is saved in every documented way. Then the missing rank arrives, MPI still writes to its old buffers
    only, and the job ends."""
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent("""
        import os, sys, time
        import numpy as np, keras, tensorflow as tf, tfdist
        from mpi4py import MPI
        os.chdir(sys.argv[1])
        rank = tfdist.rank()
        model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        x = np.random.RandomState(rank).rand(40, 2)
        model.fit(x, x[:, :1], batch_size=4, verbose=0)
        if rank == 1:
            time.sleep(7)
        try:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(model(x) ** 2)
            tape.gradient(loss, model.trainable_variables)
            sys.exit(f"rank {rank} went on")
        except tfdist.PeerError:
            if rank == 1:
                time.sleep(1000)
            model.save_weights("last.weights.h5")
            np.savez("last.npz", *model.get_weights())
            tf.train.Checkpoint(model=model).save("last")
        others = [np.full((2, 3), 7) for _ in range(1000)]  # now that the error holds nothing any more
        until = time.monotonic() + 7
        while time.monotonic() < until:
            MPI.COMM_WORLD.Iprobe()
            time.sleep(0.01)
        assert all((other == 7).all() for other in others), "written to"
        try:
            model.fit(x, x[:, :1], batch_size=4, verbose=0)
            sys.exit("not refused")
        except tfdist.PeerError as error:
            assert "is refused: rank 0 has given up waiting before" in str(error), error
        print("unharmed")
        """)
    )
    settings = {"TFDIST_STALL_ABORT_SECONDS": "3", "TFDIST_ENGINE": "mpi"}
    finished = mpirun(2, [str(script), str(tmp_path)], 90, settings)
    assert "unharmed" in finished.output, finished
    assert_ended(finished, "rank 0 gave up waiting, and has ended 3 s ago", seconds=60)
    assert {"last.weights.h5", "last.npz", "last-1.index"} <= {path.name for path in tmp_path.iterdir()}


BEFORE = """
import sys
import tensorflow as tf
v1 = tf.compat.v1
w = tf.Variable(tf.ones([3]))
if sys.argv[1] == "graph":
    with tf.Graph().as_default():
        v = v1.get_variable("v", [3])
        train = v1.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_sum(v * v))
        session = v1.Session()
        initial = v1.global_variables_initializer()
    def step():
        session.run(initial)
        session.run(train)
else:
    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(w * w)
        w.assign_sub(0.1 * tape.gradient(loss, w))
    step()
import tfdist
step()
print("trained")
"""


@pytest.mark.parametrize("kind, built", [("graph", "built"), ("function", "traced")])
def test_what_was_built_before_the_import_is_refused_when_it_trains(kind: str, built: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(BEFORE)
    finished = mpirun(2, [str(script), kind], 60)
    assert_ended(finished, f"was {built} before tfdist was imported, and trains", "Import tfdist first")
    assert "trained" not in finished.output


def test_two_threads_that_train_are_refused(tmp_path: Path) -> None:
    finished = job(
        tmp_path,
        """
        import threading
        from concurrent.futures import ThreadPoolExecutor
        tf.compat.v1.enable_eager_execution()
        import keras
        both = threading.Barrier(2)
        def train(number):
            v, optimizer = tf.Variable(tf.ones([2000])), keras.optimizers.SGD(0.1)
            @tf.function
            def step():
                with tf.GradientTape() as tape:
                    loss = tf.reduce_sum(v * v)
                optimizer.apply([tape.gradient(loss, v)], [v])
            both.wait()
            for _ in range(300):
                step()
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(train, range(2)))
        """,
    )
    assert_ended(finished, "train at the same time", "train in one thread, or one after the other")
