"""Settings from the environment and from calls, and the variables of launchers."""

from __future__ import annotations

import pytest

from tfdist.core.environment import Launch, launch
from tfdist.core.settings import Settings, SettingsError


class TestValues:
    def test_defaults_and_values(self) -> None:
        assert Settings.from_environment({}) == Settings()
        assert Settings.from_environment({"TFDIST_BUCKET_MB": "0.5", "HOME": "x"}).bucket_mb == 0.5

    @pytest.mark.parametrize(
        ("variable", "value", "said"),
        [
            ("TFDIST_BUCKET_MB", "-1", "TFDIST_BUCKET_MB='-1'"),
            ("TFDIST_STALL_SECONDS", "soon", "a number above 0"),
            ("TFDIST_STALL_SECONDS", "nan", "a number above 0"),
            ("TFDIST_ENGINE", "direct", "TFDIST_ENGINE='direct' is out of range; it takes auto | mpi"),
            ("TFDIST_BUKET_MB", "1", "TFDIST_BUKET_MB is not a setting; is TFDIST_BUCKET_MB meant.*, or unset it"),
            ("TFDIST_BUCKETMB", "1", "is TFDIST_BUCKET_MB meant"),
            ("TFDIST_bucket_mb", "1", "is TFDIST_BUCKET_MB meant"),
            ("tfdist_engine", "mpi", "is TFDIST_ENGINE meant"),
            ("TF_DIST_ENGINE", "mpi", "is TFDIST_ENGINE meant"),
            ("TFDIST_LOSS_SCALING", "2", "is TFDIST_LOSS_SCALE meant"),
            ("TFDIST_ACCUM_STEPS", "2", "is TFDIST_ACCUMULATE_STEPS meant"),
        ],
    )
    def test_refusals(self, variable: str, value: str, said: str) -> None:
        with pytest.raises(SettingsError, match=said):
            Settings.from_environment({variable: value})

    def test_what_is_another_program_s(self) -> None:
        """Module systems set variables for each package; tfdist lists them but raises no error."""
        words = "ROOT HOME DIR LIB LIBRARY INCLUDE BIN PREFIX PATH BASE VERSION CONFIG SHARE NODES JOB_ID LAUNCHER"
        theirs = [f"TFDIST_{word}" for word in sorted(words.split())]
        others = {"ENGINE": "x", "JOB": "7", "_TFDIST_RANK": "1 2 ", "TF_ENGINE": "x"}
        settings = Settings.from_environment({**dict.fromkeys(theirs, "/opt"), **others, "TFDIST_ENGINE": "mpi"})
        assert settings == Settings(engine="mpi") and list(settings.foreign) == theirs

    @pytest.mark.parametrize(
        ("environment", "expected"),
        [
            ({}, None),
            ({"SLURM_JOB_ID": "1", "SLURM_NTASKS": "4"}, None),  # inside a batch script, not started by srun
            ({"OMPI_COMM_WORLD_SIZE": "3", "OMPI_COMM_WORLD_RANK": "2"}, Launch(3, 2, 2)),
            ({"PMI_SIZE": "3", "PMI_RANK": "2", "MPI_LOCALRANKID": "0"}, Launch(3, 2, 0)),
            ({"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1"}, Launch(2, 1, 1)),
            ({"PMIX_RANK": "1"}, Launch(None, 1, 1)),
        ],
    )
    def test_launchers(self, environment: dict[str, str], expected: Launch | None) -> None:
        assert launch(environment) == expected


def with_values(options: str) -> Settings:
    """Return the settings of options such as ``sync=bmuf block_steps=8``."""
    return Settings().with_values(dict(one.split("=", 1) for one in options.split()), "a test")  # type: ignore[misc]


class TestVariables:
    def test_variables(self) -> None:
        settings = Settings.from_environment({"TFDIST_BUCKET_MB": "8", "HOME": "/"})
        assert (settings.bucket_mb, settings.origins) == (8, {"bucket_mb": "TFDIST_BUCKET_MB"})

    @pytest.mark.parametrize(
        ("environment", "said"),
        [
            ({"TFDIST_ENGINE": "fast"}, "TFDIST_ENGINE='fast' is out of range; it takes auto | mpi | collectives"),
            ({"TFDIST_COMPRESSION": "int3"}, "none | bf16 | fp16 | int8 | int4 | int2"),
            (
                {"TFDIST_ACCUMULATE_STEPS": "0"},
                "TFDIST_ACCUMULATE_STEPS='0' is out of range; it takes a whole number from",
            ),
            ({"TFDIST_ACCUMULATE_STEPS": "two"}, "TFDIST_ACCUMULATE_STEPS='two' is out of range"),
            ({"TFDIST_NODE_SIZE": "-1"}, "TFDIST_NODE_SIZE='-1' is out of range; it takes a whole number"),
        ],
    )
    def test_refusals(self, environment: dict[str, str], said: str) -> None:
        with pytest.raises(SettingsError) as error:
            Settings.from_environment(environment)
        assert said in str(error.value)

    def test_configured(self) -> None:
        with pytest.raises(
            SettingsError, match="tfdist.configure: nonsense is not a setting; the settings are: TFDIST"
        ):
            Settings().configured(nonsense=1)
        with pytest.raises(SettingsError, match="tfdist.configure: loss_scaling is not a setting; is loss_scale meant"):
            Settings().configured(loss_scaling=1)
        with pytest.raises(SettingsError, match="stall_seconds is read when tfdist is imported"):
            Settings().configured(stall_seconds=1)
        with pytest.raises(SettingsError, match="set TFDIST_ENGINE=...:interface= in the environment"):
            Settings().configured(interface="eth0")


class TestParts:
    def test_behind_a_value(self) -> None:
        variables = {"TFDIST_SYNC": "bmuf:steps=8:momentum=0.9"}
        with pytest.raises(SettingsError, match="TFDIST_LOSS_SCALE is '7'"):
            Settings.from_environment(variables | {"TFDIST_LOSS_SCALE": "7"})
        settings = Settings.from_environment(variables)
        assert (settings.sync, settings.block_steps, settings.block_momentum) == ("bmuf", 8, "0.9")
        assert settings.origins["block_steps"] == "TFDIST_SYNC"
        assert Settings().configured(sync="bmuf:steps=4") == Settings().configured(sync="bmuf", block_steps=4)

    @pytest.mark.parametrize(
        ("variable", "value", "said"),
        [
            (
                "TFDIST_SYNC",
                "bmuf:stps=8",
                "'stps' is not a part of this setting; after the value it takes steps, momentum",
            ),
            ("TFDIST_SYNC", "bmuf:8", "'8' is not a part of this setting"),
            ("TFDIST_LOSS_SCALE", "window:tolerance=2", "tolerance='2' is out of range; it takes a number from 0 to 1"),
            ("TFDIST_BLOCK_STEPS", "8", "TFDIST_BLOCK_STEPS=8 is a part of another setting: TFDIST_SYNC=...:steps=8"),
            ("TFDIST_BLOCK_STEP", "8", "TFDIST_BLOCK_STEP=8 is a part of another setting: TFDIST_SYNC=...:steps=8"),
            ("tfdist_interface", "e", "tfdist_interface=e is a part of another setting: TFDIST_ENGINE=...:interface=e"),
        ],
    )
    def test_refusals(self, variable: str, value: str, said: str) -> None:
        with pytest.raises(SettingsError, match=said):
            Settings.from_environment({variable: value})


class TestLossScale:
    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ("loss_scale=0", "loss_scale='0' is out of range; it takes none | backoff | logmax | window | a number"),
            ("loss_scale=inf", "loss_scale='inf' is out of range"),
            ("loss_scale=dynamic", "loss_scale='dynamic' is out of range"),
            ("loss_scale_tolerance=1.5", "loss_scale_tolerance='1.5' is out of range; it takes a number from 0 to 1"),
            ("mixed_precision=float16", "mixed_precision='float16' is out of range; it takes none | bf16 | fp16"),
            (
                "loss_scale=window sync=bmuf block_steps=8",
                "TFDIST_LOSS_SCALE is 'window': an overflow is left out where the ranks average gradients",
            ),
        ],
    )
    def test_refusals(self, options: str, said: str) -> None:
        with pytest.raises(SettingsError) as error:
            with_values(options)
        assert said in str(error.value)

    def test_what_has_no_effect(self) -> None:
        (line,) = Settings().configured(loss_scale="512").without_effect()
        assert "TFDIST_LOSS_SCALE is '512', but TFDIST_MIXED_PRECISION is 'none'" in line
        both = Settings().configured(loss_scale="backoff", mixed_precision="fp16")
        assert not both.without_effect()
        (line,) = both.configured(loss_scale_tolerance=0.1).without_effect()
        assert "loss_scale_tolerance is 0.1: without effect" in line


class TestBlocks:
    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ("sync=bmuf", ("TFDIST_SYNC is 'bmuf'", "block_steps is 0")),
            ("sync=average block_steps=0", ("TFDIST_SYNC is 'average'", "block_steps is 0")),
            ("sync=average block_steps=8 block_momentum=0.9", ("'average'", "block_momentum is '0.9'")),
            ("sync=average block_steps=8 block_learning_rate=2", ("'average'", "block_learning_rate is 2.0")),
            ("sync=average block_steps=8 block_nesterov=1", ("'average'", "block_nesterov is True")),
            ("compression=int2", ("TFDIST_COMPRESSION is 'int2'", "TFDIST_SYNC is 'gradients'", "int8")),
            ("sync=diloco:steps=4:fragments=8", ("block_steps is 4", "block_fragments is 8", "8 steps")),
            ("sync=diloco:steps=10:fragments=4", ("block_steps is 10", "block_fragments is 4", "12 steps")),
            ("sync=diloco:steps=8:fragments=4:delay=3", ("block_delay is 3", "block_steps is 8", "at most 2")),
            ("sync=bmuf:steps=8:fragments=2", ("block_state is 'reset'", "block_fragments is 2", "block_state=keep")),
            ("sync=diloco:steps=8:delay=2:state=average", ("block_state is 'average'", "block_delay is 2")),
            ("sync=diloco:steps=8:delay=2:alpha=1.5", ("alpha='1.5' is out of range",)),
            ("sync=bmuf block_steps=8 sparse=gather", ("TFDIST_SPARSE is 'gather'", "TFDIST_SYNC is 'bmuf'")),
            ("sync=bmuf block_steps=8 block_momentum=1", ("block_momentum='1' is out of range", "below 1")),
            ("sync=bmuf block_steps=-1", ("block_steps='-1' is out of range",)),
            (
                "sync=bmuf block_steps=8 block_scale=1 block_learning_rate=1",
                ("block_scale is '1'", "leave one of them"),
            ),
            ("sync=average block_steps=8 block_scale=1", ("'average'", "block_scale is '1'")),
            ("sync=bmuf block_steps=8 block_learning_rate=0", ("block_learning_rate='0' is out of range",)),
            ("sync=bmuf block_steps=8 accumulate_steps=4", ("TFDIST_ACCUMULATE_STEPS is 4", "TFDIST_SYNC is 'bmuf'")),
            ("sync=often", ("gradients | average | bmuf",)),
        ],
    )
    def test_refusals(self, options: str, said: tuple[str, ...]) -> None:
        with pytest.raises(SettingsError) as error:
            with_values(options)
        assert all(words in str(error.value) for words in said), error.value

    def test_blocks_travel_in_each_format(self) -> None:
        for format in ("bf16", "fp16", "int8", "int4", "int2"):
            settings = with_values(f"sync=diloco:steps=8:fragments=4:delay=2:alpha=0.25 compression={format}")
            assert (settings.block_fragments, settings.block_delay, settings.block_alpha) == (4, 2, 0.25)
            assert settings.of_blocks("block_state") == "keep"

    def test_sparse_has_a_meaning_in_a_warm_up(self) -> None:
        assert with_values("sync=bmuf block_steps=8 sparse=gather block_warmup=3").block_warmup == 3

    def test_configured(self) -> None:
        assert Settings().configured(sync="bmuf", block_steps=4).block_steps == 4
        with pytest.raises(SettingsError, match="TFDIST_SYNC is 'bmuf', but block_steps is 0"):
            Settings().configured(sync="bmuf")

    def test_what_has_no_effect(self) -> None:
        settings = Settings.from_environment({"TFDIST_SYNC": "gradients:steps=8:nesterov=1"})
        assert "block_nesterov is True, block_steps is 8: without effect" in settings.without_effect()[0]
        assert not settings.configured(sync="bmuf").without_effect()
        assert not Settings().without_effect()
