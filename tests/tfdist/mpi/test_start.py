"""Which network module MPICH is told to take under Slurm's pmi2; ``tests/cluster/test_slurm.py`` has why."""

from __future__ import annotations

import pytest

from tfdist.core.environment import started_by_slurm_pmi
from tfdist.mpi._start import device_of, module_for_slurm

SLURM = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "PMI_FD": "11", "PMI_RANK": "1", "PMI_SIZE": "4"}


def test_whose_pmi_it_is() -> None:
    assert started_by_slurm_pmi({**SLURM, "PMI_JOBID": "7.0"})
    assert not started_by_slurm_pmi({**SLURM, "MPI_LOCALRANKID": "0"})  # Hydra's, which srun has started
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
