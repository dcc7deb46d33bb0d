"""The engine's parts that need no ranks: shared memory between threads, pieces, slices, bytes, settings, the trace."""

from __future__ import annotations

import itertools
import json
import os
import random
import subprocess
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from tfdist import buckets, combining, rows, timeline
from tfdist.job import Tuning
from tfdist.peers import Peers, address
from tfdist.settings import Settings, SettingsError
from tfdist.shared import Segments
from tfdist.topology import Topology, layout
from tfdist.tuning import SIZES_BYTES, Measurement


class TestLines:
    @pytest.mark.parametrize("ranks", [2, 3, 4])
    def test_everybody_reads_what_everybody_brought_in_the_same_turn(self, ranks: int) -> None:
        memory = [np.zeros(1024, np.uint8) for _ in range(ranks)]
        wrong: list[str] = []

        def run(rank: int) -> None:
            lines = Segments(memory, rank, lambda: None).lines()
            delays = random.Random(rank)
            for turn in range(300):
                lines.enter([turn, rank])
                while not lines.Test():
                    time.sleep(0)
                expected = [[turn, r] for r in range(ranks)]
                if lines.read()[:, :2].tolist() != expected:
                    wrong.append(f"rank {rank}, turn {turn}: {lines.read()[:, :2].tolist()}")
                if delays.random() < 0.05:
                    time.sleep(0.001)

        threads = [threading.Thread(target=run, args=[rank], daemon=True) for rank in range(ranks)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=30)
        assert not any(thread.is_alive() for thread in threads)
        assert wrong == []

    def test_segments_do_not_overlap(self) -> None:
        memory = [np.zeros(4096, np.uint8) for _ in range(2)]
        segments = Segments(memory, 0, lambda: None)
        taken = [segments.each(size)[0] for size in (100, 1, 64)]
        for number, part in enumerate(taken, 1):
            part[:] = number
        assert [sorted(set(part.tolist())) for part in taken] == [[1], [2], [3]]
        assert all((part.ctypes.data - memory[0].ctypes.data) % 64 == 0 for part in taken)
        assert segments.free_bytes == 4096 - 128 - 64 - 64


class TestPieces:
    def test_every_element_once_and_in_order(self) -> None:
        sizes = [5, 0, 17, 1, 8]
        for room in (1, 3, 8, 100):
            seen: list[tuple[int, int]] = []
            for piece in buckets.pack(sizes, room):
                assert piece[0][2].start == 0 and piece[-1][2].stop <= room
                assert [p[2].stop for p in piece[:-1]] == [p[2].start for p in piece[1:]]
                seen += [(tensor, i) for tensor, part, _ in piece for i in range(part.start, part.stop)]
            assert seen == [(tensor, i) for tensor, size in enumerate(sizes) for i in range(size)]

    def test_a_stretch_of_a_buffer(self) -> None:
        sizes = [5, 0, 17, 1, 8]
        places = buckets.offsets(sizes, np.dtype(np.float32))
        assert places == [0, 16, 16, 48, 64, 80]
        every = [(t, i, places[t] + i) for t, size in enumerate(sizes) for i in range(size)]
        for room in (1, 3, 8, 100):
            for start, stop in ((0, 80), (16, 50), (5, 6), (20, 70), (81, 90)):
                pieces = buckets.cut(sizes, places[:-1], slice(start, stop), room)
                assert all(piece and piece[-1][2].stop - piece[0][2].start <= room for piece in pieces)
                seen = [
                    (tensor, i, place.start + i - part.start)
                    for piece in pieces
                    for tensor, part, place in piece
                    for i in range(part.start, part.stop)
                ]
                assert seen == [e for e in every if start <= e[2] < stop]

    @pytest.mark.parametrize("elements", [0, 1, 15, 16, 17, 1000])
    def test_slices_cover_all_and_begin_on_cache_lines(self, elements: int) -> None:
        for parts in (1, 2, 3, 7):
            cut = combining.slices(elements, parts, 4)
            assert len(cut) == parts and cut[0].start == 0 and cut[-1].stop == elements
            assert all(
                a.stop == b.start and (b.start % 16 == 0 or b.start == elements) for a, b in itertools.pairwise(cut)
            )


class TestCombining:
    def test_blocks_are_invisible(self) -> None:
        values = [np.random.RandomState(r).randn(200_003).astype(np.float32) for r in range(3)]
        out = np.empty_like(values[0])
        combining.combine("mean", values, out, 3)
        np.testing.assert_array_equal(out, ((values[0] + values[1]) + values[2]) / np.float32(3))

    @pytest.mark.parametrize("place", [0, 1])
    def test_in_the_place_of_one_of_the_first_two(self, place: int) -> None:
        values = [np.random.RandomState(r).randn(100_003).astype(np.float32) for r in range(3)]
        expected = ((values[0] + values[1]) + values[2]) / np.float32(3)
        combining.combine("mean", values, values[place], 3)
        np.testing.assert_array_equal(values[place], expected)

    def test_float16_is_added_in_float32(self) -> None:
        values = [np.full(5, x, np.float16) for x in (2048, 1, 1)]  # in float16, 2048 + 1 is 2048
        out = np.empty_like(values[0])
        combining.combine("sum", values, out)
        assert (out == 2050).all()

    def test_nobody_contributes(self) -> None:
        for op, dtype, expected in (("sum", "int32", 0), ("min", "float32", np.inf), ("max", "uint8", 0)):
            out = np.full(3, 7, dtype)
            combining.combine(op, [], out)  # type: ignore[arg-type]
            assert (out == expected).all()


class TestTopology:
    def test_forced_nodes(self) -> None:
        topology = layout(["a", "a", "b", "a", "b", "a"], node_size=2)
        assert topology.nodes == ((0, 1), (2, 4), (3, 5))
        assert topology.lanes == 2
        assert [topology.lane_of(r) for r in range(6)] == [0, 1, 0, 0, 1, 1]

    def test_nodes_of_different_sizes(self) -> None:
        topology = layout(["a", "a", "a", "b"])
        assert (topology.lanes, [topology.lane_of(r) for r in range(4)]) == (1, [0, None, None, 0])
        assert str(topology) == "4 ranks on 2 nodes of 1, 3"
        assert str(Topology(((0, 1),))) == "2 ranks on one node"


class TestRows:
    def test_the_published_ratio(self) -> None:
        """Cavdar et al. 2019 (arXiv:1905.04035): 11.4 GB against 139 MB, 82 times, with 64 workers.

        TensorFlow 1 made slices of all of the embedding it shares with the output layer, beside those of 5,000 source
        and 5,000 target tokens of a worker.
        """
        vocabulary, width, tokens = 33_708, 1024, 10_000
        gathered = rows.gathered_bytes(64 * (vocabulary + tokens), width)
        assert gathered / rows.dense_bytes(vocabulary, width) == pytest.approx(82, rel=0.02)
        assert gathered == pytest.approx(11.446e9, rel=0.01)

    def test_auto_follows_the_bytes(self) -> None:
        few = rows.choose("auto", 100, 32_000, 512, 4, 8)
        many = rows.choose("auto", 70_000, 32_000, 512, 4, 8)
        assert (few, many) == ("gather", "dense")
        assert rows.choose("dense", 1, None, 512, 4, 8) == "gather"  # the number of rows is not known


class TestTuning:
    WAYS = ((Tuning(0, 1 << 20), 0.5), (Tuning(0, 0), 0.3), (Tuning(0, 1 << 22), 0.4))

    def test_one_outlier_does_not_decide(self) -> None:
        private = (1.0, 1.0, 1.0, 1.0, 1.0, 1.0)
        own = (2.0, 2.0, 0.5, 0.5, 1.05, 0.5)
        assert Measurement(self.WAYS, private, own).tuning == Tuning(SIZES_BYTES[2], 0)

    def test_never_faster(self) -> None:
        assert Measurement(self.WAYS, (1.0,) * 6, (2.0,) * 6).tuning.crossover_bytes == float("inf")
        assert Measurement((), (1.0,) * 6, ()).tuning.crossover_bytes == float("inf")


class TestPeers:
    """A process may read its own memory in the same way."""

    def test_many_parts(self) -> None:
        table = np.zeros(2, np.int64)
        peers = Peers([os.getpid()], [table], 0)
        source, target = np.arange(3000, dtype=np.float32), np.zeros(3000, np.float32)
        peers.publish([address(source), 7])
        assert peers.addresses(0).tolist() == [address(source), 7]
        order = np.arange(0, 3000, 2)  # more parts than one call takes
        parts = [np.stack([address(a) + 4 * order, np.full(len(order), 4)], axis=1) for a in (source, target)]
        peers.read(0, parts[0], parts[1], 4 * len(order))
        np.testing.assert_array_equal(target, np.where(np.arange(3000) % 2, 0, source))
        peers.write(0, source, address(target))
        np.testing.assert_array_equal(target, source)

    def test_memory_that_is_not_there(self) -> None:
        peers = Peers([os.getpid()], [np.zeros(1, np.int64)], 0)
        with pytest.raises(OSError, match=rf"memory of process {os.getpid()}: Bad address"):
            peers.write(0, np.zeros(3), 8)

    def test_a_process_that_has_ended(self) -> None:
        child = subprocess.Popen(["true"])
        child.wait()
        with pytest.raises(OSError, match="No such process"):
            Peers([child.pid], [], 0).write(0, np.zeros(3), 8)


class TestSettings:
    def test_options_and_variables(self) -> None:
        settings = Settings.from_environment(
            {"TFDIST_OPTIONS": "engine=mpi, bucket_mb=7", "TFDIST_BUCKET_MB": "8", "HOME": "/"}
        )
        assert (settings.engine, settings.bucket_mb) == ("mpi", 8)
        assert settings.origins == {"engine": "TFDIST_OPTIONS", "bucket_mb": "TFDIST_BUCKET_MB"}

    @pytest.mark.parametrize(
        ("environment", "said"),
        [
            ({"TFDIST_ENGINE": "fast"}, "TFDIST_ENGINE='fast' is out of range; it takes auto | mpi | shared"),
            ({"TFDIST_OPTIONS": "speed=9"}, "TFDIST_OPTIONS: speed is not a setting; the settings are: TFDIST_BUCKET"),
            ({"TFDIST_OPTIONS": "compression=int8"}, "none | bf16 | fp16"),
            ({"TFDIST_NODE_SIZE": "-1"}, "TFDIST_NODE_SIZE='-1' is out of range; it takes a whole number"),
        ],
    )
    def test_refusals(self, environment: dict[str, str], said: str) -> None:
        with pytest.raises(SettingsError) as error:
            Settings.from_environment(environment)
        assert said in str(error.value)

    def test_configured(self) -> None:
        with pytest.raises(SettingsError, match="tfdist.configure: nonsense is not a setting"):
            Settings().configured(nonsense=1)
        with pytest.raises(SettingsError, match="stall_seconds is read when tfdist is imported"):
            Settings().configured(stall_seconds=1)


class TestTimeline:
    def events(self, late: float) -> list[timeline.Event]:
        made = []
        for step in range(1, 4):
            start = step * 1.0 + late
            made += [
                timeline.Event("wait", "average", step, "bucket", start, step + 0.3),
                timeline.Event("reduce", "average", step, "bucket", step + 0.3, step + 0.5),
                timeline.Event("held up", "average", step, "bucket", step + 0.4, step + 0.5),
            ]
        return made

    def test_a_trace_that_chrome_reads_and_a_table(self, tmp_path: Path) -> None:
        ranks = [self.events(0.0), self.events(0.2)]
        timeline.write(str(tmp_path / "trace.json"), ranks)
        trace = json.loads((tmp_path / "trace.json").read_text())
        assert {e["pid"] for e in trace} == {0, 1}
        assert [e["name"] for e in trace if e["ph"] == "i" and e["pid"] == 0] == ["step 1", "step 2", "step 3"]
        assert all(e["dur"] >= 0 and e["ts"] >= 0 for e in trace if e["ph"] == "X")
        assert [p.name for p in tmp_path.iterdir()] == ["trace.json"]
        lines = timeline.table(ranks).splitlines()
        assert lines[1].split() == ["0", "3", "1000.00", "900.00", "200.00", "50%", "0"]
        assert lines[2].split()[-1] == "3"  # always the last
