"""Settings of MPI before it starts: the network under Slurm's pmi2 (``tests/cluster/test_slurm.py``); shared memory."""

from __future__ import annotations

import time

import pytest

from tfdist.core import environment
from tfdist.core.environment import Launch, started_by_slurm_pmi
from tfdist.mpi import _start
from tfdist.mpi._start import device_of, module_for_slurm
from tfdist.transport.errors import SetupError

SLURM = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "PMI_FD": "11", "PMI_RANK": "1", "PMI_SIZE": "4"}


def test_whose_pmi_it_is() -> None:
    assert started_by_slurm_pmi({**SLURM, "PMI_JOBID": "7.0"})
    assert not started_by_slurm_pmi({**SLURM, "MPI_LOCALRANKID": "0"})  # from Hydra, which srun has started
    assert not started_by_slurm_pmi({**SLURM, "MPI_LOCALRANKID": "0", "PMI_JOBID": "7.0"})  # where pmi2 is the default
    assert not started_by_slurm_pmi({"PMI_FD": "5", "PMI_RANK": "0", "MPI_LOCALRANKID": "0"})
    assert not started_by_slurm_pmi({"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "PMIX_RANK": "0"})


@pytest.mark.parametrize(
    ("version", "module"),
    [
        ("MPICH Version:      5.0.2\nMPICH Device:       ch4:ucx ofi\nMPICH CC:   cc\n", "ofi"),
        ("MPICH Version:      4.2\nMPICH Device:\tch4:ucx,ofi", "ofi"),
        ("MPICH Version:      4.2\nMPICH Device:       ch4:ofi ucx", ""),
        ("MPICH Version:      4.2\nMPICH Device:       ch4:ofi", ""),
        ("MPICH Version:      4.2\nMPICH Device:       ch4:ucx", None),
        ("MPICH Version:      4.0\nMPICH Device:       ch3:nemesis", ""),
        ("Open MPI v5.0.11", ""),
    ],
)
def test_modules(version: str, module: str | None) -> None:
    assert module_for_slurm(device_of(version)) == module


def test_a_launcher_of_another_mpi() -> None:
    assert environment.started_by_pmix({"PMIX_RANK": "1", "OMPI_COMM_WORLD_RANK": "1"})
    assert not environment.started_by_pmix({"PMIX_RANK": "1", "PMI_FD": "5"})  # MPICH's mpirun inside a job with PMIx
    mpich = "MPICH Version:      5.0.2\nMPICH Device:       ch4:ucx ofi\nMPICH configure: {}\n"
    with pytest.raises(SetupError, match=r"Open MPI's mpirun .*\(MPICH Version:      5.0.2\) does not.*tfdist-run"):
        _start.check_pmix(mpich.format("--with-device=ch4"))
    _start.check_pmix(mpich.format("--with-pmix=/usr"))
    _start.check_pmix("Open MPI v5.0.11")


KB, MB = 1 << 10, 1 << 20


class TestSharedMemory:
    """/dev/shm of any size: MPI is limited to the free memory, or the job is refused."""

    @pytest.fixture
    def waits(self, monkeypatch: pytest.MonkeyPatch) -> list[float]:
        waits: list[float] = []
        monkeypatch.setattr(time, "sleep", waits.append)
        return waits

    @pytest.fixture
    def told(self, monkeypatch: pytest.MonkeyPatch, waits: list[float]) -> dict[str, str]:
        told: dict[str, str] = {}

        def set_default(name: str, value: str) -> bool:
            told[name] = value
            return True

        monkeypatch.setattr(environment, "variables", lambda: told)
        monkeypatch.setattr(environment, "set_default", set_default)
        return told

    @pytest.mark.parametrize("ranks", [1, 2, 8, 64])
    def test_room_for_all(self, told: dict[str, str], waits: list[float], ranks: int) -> None:
        size = ranks * 16 * MB
        _start.fit_into_shared_memory(Launch(ranks, ranks - 1, ranks - 1, ranks), size, size)
        assert told == {} and waits == []

    @pytest.mark.parametrize("size", [64 * KB, MB, 8 * MB, 16 * MB])
    def test_less(self, told: dict[str, str], size: int) -> None:
        _start.fit_into_shared_memory(Launch(2, 0, 0, 2), size, size)
        assert told[_start.UCX_WAYS] == "^sm"
        assert (_start.CELLS in told) == (size < 4 * MB)
        if _start.CELLS in told:
            assert int(told[_start.CELLS]) * int(told[_start.CELL_BYTES]) * 2 < size

    def test_all_ranks_come_to_the_same(self, told: dict[str, str]) -> None:
        """The first rank has already taken its part when the other ranks read the free memory."""
        found = []
        for rank, free in enumerate((MB, 300 * KB)):
            told.clear()
            _start.fit_into_shared_memory(Launch(2, rank, rank, 2), MB, free)
            found.append(dict(told))
        assert found[0] == found[1]

    @pytest.mark.parametrize(("size", "free"), [(32 * KB, 32 * KB), (64 * MB, 50 * KB)])
    def test_no_room(self, told: dict[str, str], waits: list[float], size: int, free: int) -> None:
        """One rank raises the error. The others leave it the time to do so."""
        with pytest.raises(SetupError, match="/dev/shm has .* MiB free, and MPI needs .* for 4 ranks"):
            _start.fit_into_shared_memory(Launch(4, 0, 0, 4), size, free)
        assert waits == []
        told.clear()
        _start.fit_into_shared_memory(Launch(4, 1, 1, 4), size, free)
        assert len(waits) == 1

    def test_what_the_user_has_set_stays(self, told: dict[str, str]) -> None:
        told[_start.CELLS] = "64"
        _start.fit_into_shared_memory(Launch(4, 0, 0, 4), KB, KB)
        assert told == {_start.CELLS: "64"}
