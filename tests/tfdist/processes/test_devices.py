"""A rank's share of its machine: GPUs and threads."""

from __future__ import annotations

import os

import pytest

from tfdist.processes import devices
from tfdist.processes.devices import gpu_of, threads_of


class TestShareOfTheMachine:
    @pytest.mark.parametrize(
        ("local_rank", "local_size", "visible", "gpus", "expected"),
        [
            (1, 2, None, 0, None),
            (1, 2, None, 4, "1"),
            (1, 2, "4,6", 8, "6"),
            (1, 2, "3", 8, None),  # the user's choice for each rank
            (3, 4, None, 2, "1"),  # two ranks on each GPU
            (2, 4, "4,6", 8, "4"),
            (0, 1, None, 8, None),  # one rank: all GPUs
            (1, 2, "", 8, None),  # no GPU, by choice
        ],
    )
    def test_gpu(self, local_rank: int, local_size: int, visible: str | None, gpus: int, expected: str | None) -> None:
        assert gpu_of(local_rank, local_size, visible, gpus) == expected

    @pytest.mark.parametrize(
        ("own", "others", "expected"),
        [
            ({0, 1}, [{0, 1}], 1),
            ({0, 1}, [], 2),
            ({0, 1}, [{0, 1}] * 3, 1),
            ({0, 1, 2, 3, 4, 5, 6, 7}, [set(range(8))] * 2, 2),
            ({3}, [{0}, {1}, {2}], 1),
            ({0, 1, 2}, [{3}], 3),
        ],
    )
    def test_threads(self, own: set[int], others: list[set[int]], expected: int) -> None:
        assert threads_of(frozenset(own), [frozenset(own), *map(frozenset, others)]) == expected

    @pytest.mark.parametrize(("gpus", "ranks", "grows"), [(1, 2, True), (2, 2, False), (0, 2, False)])
    def test_memory_of_shared_gpus_grows(
        self, monkeypatch: pytest.MonkeyPatch, gpus: int, ranks: int, grows: bool
    ) -> None:
        said: list[str] = []
        monkeypatch.setattr(devices, "announce", said.append)
        monkeypatch.setattr(devices, "gpus_of_machine", lambda: gpus)
        monkeypatch.setattr(devices, "devices_are_known", lambda modules: False)
        for variable in ("CUDA_VISIBLE_DEVICES", "TF_FORCE_GPU_ALLOW_GROWTH"):
            monkeypatch.delenv(variable, raising=False)
        monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", "1")
        devices.take_share(1, ranks, lambda own: [own] * ranks)
        assert (os.environ.get("TF_FORCE_GPU_ALLOW_GROWTH") == "true") is grows
        assert said == ["2 ranks of a machine share 1 GPU, whose memory grows as needed"] * grows
        for variable in ("CUDA_VISIBLE_DEVICES", "TF_FORCE_GPU_ALLOW_GROWTH"):
            monkeypatch.delenv(variable, raising=False)


@pytest.mark.parametrize(
    ("engine", "gpus", "visible", "told"),
    [
        ("auto", 2, None, True),
        ("auto", 4, "2,3", True),
        ("auto", 1, None, False),
        ("auto", 0, None, False),
        ("auto", 4, "2", False),
        ("nccl", 2, None, False),
        ("mpi", 2, None, False),
    ],
)
def test_nccl_is_suggested_where_each_rank_has_a_gpu(
    monkeypatch: pytest.MonkeyPatch, engine: str, gpus: int, visible: str | None, told: bool
) -> None:
    monkeypatch.setattr(devices, "gpus_of_machine", lambda: gpus)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert ("TFDIST_ENGINE=nccl" in devices.suggestion(engine, 2)) == told


class TestDevicesThatAreKnown:
    @pytest.mark.parametrize(
        ("asked", "visible", "warned"), [(True, None, True), (False, None, False), (True, "3", False)]
    )
    def test_a_gpu_that_is_chosen_too_late_is_told(
        self, monkeypatch: pytest.MonkeyPatch, asked: bool, visible: str | None, warned: bool
    ) -> None:
        said: list[str] = []
        monkeypatch.setattr(devices, "announce", said.append)
        monkeypatch.setattr(devices, "gpus_of_machine", lambda: 2)
        monkeypatch.setattr(devices, "devices_are_known", lambda modules: asked)
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible or "0,1")
        devices.take_share(1, 2, lambda own: [own, own])
        assert [("Import tfdist before" in line) for line in said] == [True] * warned
