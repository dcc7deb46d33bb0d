"""``simulate_scaling``: the model against calculations by hand, and against steps that it was not fitted on."""

from __future__ import annotations

import argparse
import json
import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.launch import ROOT, run

sys.path.insert(0, str(ROOT / "scripts" / "studies"))

from scaling_model import Cluster, Job, LocalSteps, Machine, fitted, ring_bytes  # noqa: E402

# 100 bytes per second in a node, 10 between nodes; 0.02 s per byte at each rank.
PLAIN = Cluster(2, 100.0, 10.0, latency=0.0, staging=0.02)


def simulated(*arguments: str) -> tuple[int | None, str]:
    done = run([sys.executable, "scripts/studies/simulate_scaling", *arguments], 60)
    return done.code, done.output + done.errors


def test_the_ring() -> None:
    assert [ring_bytes(60.0, n) for n in (1, 2, 3, 4)] == [0.0, 60.0, 80.0, 90.0]
    assert PLAIN.all_reduce(60.0, 2) == pytest.approx(60 * (0.02 + 0.01))
    assert PLAIN.all_reduce(60.0, 4) == pytest.approx(90 * (0.02 + 0.1))
    # Two rounds of log2(4) messages, at half the rate.
    slow = Cluster(2, 100.0, 10.0, latency=0.5, efficiency=0.5)
    assert slow.all_reduce(60.0, 4) == pytest.approx(90 / 5 + 2 * 2 * 0.5)
    assert slow.all_gather(60.0, 3) == pytest.approx(2 * 60 / 5 + 2 * 0.5)


def test_buckets_hide_behind_the_backward_pass() -> None:
    one = Job(compute=9.0, gradients=60.0)
    assert one.seconds(PLAIN, 1) == 9.0
    assert one.seconds(PLAIN, 2) == pytest.approx(9 + 1.8)
    # Three buckets are ready at 5, 7 and 9 s, and take 0.6 s each: only the last one adds time.
    assert Job(9.0, 60.0, bucket=20.0).seconds(PLAIN, 2) == pytest.approx(9.6)
    # Between nodes the buckets take 3.6 s each, one after the other from 5 s on.
    assert Job(9.0, 60.0, bucket=20.0).seconds(PLAIN, 4) == pytest.approx(5 + 3 * 3.6)
    assert Job(9.0, 60.0, bucket=20.0, backward=0.0).seconds(PLAIN, 4) == pytest.approx(9 + 3 * 3.6)


def test_bf16_and_rows_send_less() -> None:
    assert Job(9.0, 60.0, wire=0.5).seconds(PLAIN, 4) == pytest.approx(9 + 45 * 0.12)
    # 20 of the 60 bytes are tables, and each rank touches a tenth: 3 * 2 bytes come from the other ranks.
    rows = Job(9.0, 60.0, tables=20.0, touched=0.1, rows=True)
    assert rows.seconds(PLAIN, 4) == pytest.approx(9 + (ring_bytes(40, 4) + 6) * 0.12)
    # The rows of all ranks would be larger than the tables.
    dense = Job(9.0, 60.0, tables=20.0, touched=0.9, rows=True)
    assert dense.seconds(PLAIN, 4) == pytest.approx(9 + 90 * 0.12)


def test_blocks() -> None:
    job = Job(compute=9.0, gradients=60.0)
    assert job.local_seconds(PLAIN, 4, LocalSteps(20)) == pytest.approx(9 + 90 * 0.12 / 20)
    assert job.local_seconds(PLAIN, 4, LocalSteps(1)) == job.seconds(PLAIN, 4)
    assert job.local_seconds(PLAIN, 1, LocalSteps(20)) == 9.0
    assert LocalSteps(20, 8).wire == pytest.approx(8.125 / 32) and LocalSteps(20, 16).wire == 0.5
    assert job.local_seconds(PLAIN, 4, LocalSteps(20, 32, 2, 1)) == pytest.approx(9), "a step hides 5.4 s"
    assert job.local_seconds(PLAIN, 4, LocalSteps(1, 32, 1, 1)) == pytest.approx(10.8), "the exchange takes longer"


def test_the_fit_goes_through_its_steps() -> None:
    seconds = {n: Job(9.0, 60.0).seconds(PLAIN, n) for n in (1, 2, 6)}
    cluster, job = fitted(Cluster(2, 100.0, 20.0, latency=0.0), 60.0, seconds)
    assert (cluster.staging, cluster.efficiency) == pytest.approx((0.02, 0.5))
    assert {n: job.seconds(cluster, n) for n in seconds} == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("seconds", "message"),
    [
        ({1: 9.0, 2: 10.0}, r"steps of \[1, 2\] ranks"),
        ({1: 9.0, 2: 10.0, 3: 11.0, 4: 12.0}, "up to 2"),
        ({1: 9.0, 3: 10.0, 4: 11.0}, r"steps of \[1, 3, 4\]"),
        ({1: 9.0, 2: 9.1, 4: 30.0}, "shorter than the links"),
        ({1: 9.0, 2: 10.8, 4: 11.0}, "shorter than the links"),
    ],
)
def test_what_cannot_be_fitted(seconds: dict[int, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fitted(PLAIN, 60.0, seconds)


def test_a_machine() -> None:
    """Two cores: a step takes 6 s alone, 8 s while another process runs; an exchange of two ranks takes 2 s."""
    machine = Machine(cores=2, alone=6.0, beside=8.0, floor=2.0)
    assert [machine.seconds(n) for n in (1, 2, 3, 4)] == [6.0, 10.0, 15.0, 20.0]
    assert Machine(4, 6.0, 9.0, 2.0).seconds(3) == pytest.approx(8 + 1.5)
    assert Machine(1, 6.0, 6.0, 2.0).seconds(2) == pytest.approx(12 + 4)


def test_the_article_is_predicted_and_goes_on_to_4096(tmp_path: Path) -> None:
    code, said = simulated("--json", str(tmp_path / "x"))
    assert code == 0, said
    found = json.loads((tmp_path / "x").read_text())
    errors = {int(n): row["error"] for n, row in found["article"].items()}
    assert [n for n, row in found["article"].items() if row["fitted"]] == ["1", "2", "8"]
    assert max(abs(errors[n]) for n in (1, 2, 8)) < 1e-9
    assert max(abs(errors[n]) for n in (4, 12, 16)) < 0.15
    settings = {name: by["4096"] for name, by in found["settings"].items()}
    assert settings.keys() == {"one exchange", "buckets", "bf16", "rows", "all three"}
    assert settings["all three"] < settings["buckets"] < settings["one exchange"]


def test_the_article_on_another_network(tmp_path: Path) -> None:
    """The fit stays the same; transfers over the network take ten times as long."""
    code, said = simulated("--network-gbit=10", "--latency-us=0", "--ranks", "1", "4", "8", "--json", f"{tmp_path}/x")
    assert code == 0, said
    found = json.loads((tmp_path / "x").read_text())
    times = found["settings"]["one exchange"]
    assert times["4"] == pytest.approx(found["article"]["4"]["model"], rel=1e-3)
    network = 717e6 * 1.75 * 8 / 100e9 / found["fit"]["efficiency"] * 1e3
    assert times["8"] == pytest.approx(680 + 9 * network, rel=1e-3)


def test_another_job_and_its_blocks(tmp_path: Path) -> None:
    """30 MB over 90 % of 1 Gbit/s take 267 ms on 2 ranks."""
    job = ("--compute-ms=250", "--gradient-mb=30", "--per-node=1", "--latency-us=0", "--steps=1000")
    blocks = ("--local-steps=20", "--fragments=4", "--delay=1", "--links-gbit", "1", "0.01")
    code, said = simulated(*job, *blocks, "--ranks", "1", "2", "4", "--json", str(tmp_path / "x"))
    assert code == 0, said
    found = json.loads((tmp_path / "x").read_text())["local"]
    fast = {name: rows["2"] for name, rows in found["1"].items()}
    assert fast["32 bits"]["ms"] == pytest.approx(250 + 266.667 / 20)
    assert fast["8 bits"]["ms"] == pytest.approx(250 + 266.667 / 20 * 8.125 / 32)
    assert fast["4 bits, 4 x"]["ms"] == pytest.approx(250), "a step hides the 9 ms of a fragment"
    assert fast["32 bits"]["tb"] == pytest.approx(30e6 / 20 * 1000 / 1e12)
    assert fast["float32"]["tb"] == pytest.approx(30e6 * 1000 / 1e12) == 2 * fast["bf16"]["tb"]
    slow = found["0.01"]["4 bits, 4 x"]["2"]["ms"]
    one = 26_666.7 * 4.125 / 32 / 4
    assert slow == pytest.approx(250 + 4 * (one - 250) / 20, rel=1e-3)
    assert all(rows["1"]["ms"] == 250 for rows in found["1"].values())


def test_a_measured_machine(tmp_path: Path) -> None:
    seconds = {"alone": 0.5, "beside": 0.6, "floor": 0.05, "ranks 1": 0.5, "ranks 2": 0.65, "ranks 4": 1.0}
    path = tmp_path / "machine.json"
    path.write_text(json.dumps({"measured": {"cores": 2, "seconds": {"dense, 1 + 1 threads": seconds}}}))
    code, said = simulated("--machine", str(path), "--json", str(tmp_path / "x"))
    assert code == 0, said
    rows = json.loads((tmp_path / "x").read_text())["machine"]["dense, 1 + 1 threads"]
    assert [rows[n]["model"] for n in ("1", "2", "4")] == pytest.approx([500, 650, 1300])
    assert "+30.0%" in said


def test_what_is_taken_from_the_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model's inputs come from processes that exchange nothing; the median of rounds counts."""
    script = runpy.run_path(str(ROOT / "scripts" / "studies" / "simulate_scaling"))
    runs: list[int] = []

    def bench_step(command: list[str], **more: Any) -> None:
        n = int(command[command.index("--ranks") + 1])
        runs.append(n)
        slower = 1.5 if len(runs) <= 3 else 1.0  # the first of three rounds
        # Speeds of all processes together: a step takes 0.5 s alone, 0.6 s while others run; ranks take 0.1 s more.
        speeds = {"one process": 1 / 0.5, "independent": n / 0.6, "ranks": n / (0.6 + 0.1 * (n > 1)) / slower}
        found = {"steps_per_second": {"dense": speeds}, "floor_s": {"dense": n / 100}}
        Path(command[command.index("--json") + 1]).write_text(json.dumps(found))

    monkeypatch.setattr(subprocess, "run", bench_step)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    found = script["measured"](argparse.Namespace(rounds=3, seconds=1.0))
    assert runs == [1, 2, 4] * 3 and found["cores"] == 2
    seconds = found["seconds"]["dense"]
    inputs = {"alone": 0.5, "beside": 0.6, "floor": 0.02}
    assert seconds == pytest.approx(inputs | {"ranks 1": 0.6, "ranks 2": 0.7, "ranks 4": 0.7})


def test_bad_input() -> None:
    for arguments in (["--local-steps=0"], ["--per-node=0"], ["--network-gbit=-1"], ["--ranks", "2", "0"]):
        code, said = simulated(*arguments)
        assert code == 1 and "it must be more than 0" in said and arguments[0].split("=")[0] in said, arguments
    code, said = simulated("--local-steps=4", "--fragments=8")
    assert code == 1 and "--fragments=8 and --delay=1 do not fit into --local-steps=4" in said
    code, said = simulated("--tables-mb=-1")
    assert code == 1 and "--tables-mb=-1.0; it must be at least 0" in said
