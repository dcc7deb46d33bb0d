"""The command line and the saved configuration, and what they refuse."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

import nmt
from nmt.core.errors import InputError
from nmt.options.config import FIELDS, Config
from nmt.options.configuration_options import PRESETS
from nmt.options.flags import help_text, parse
from nmt.options.hparams_file import read_file, read_saved
from nmt.options.model_options import INIT_OPS
from nmt.options.presets import preset, preset_lines
from nmt.options.resolve import resolve
from nmt.options.training_options import DECAY_SCHEMES, WARMUP_SCHEMES

NEEDED = {
    "src": "en",
    "tgt": "de",
    "train_prefix": "t",
    "dev_prefix": "d",
    "vocab_prefix": "v",
    "out_dir": "o",
}


def test_parse_keeps_what_was_given_only() -> None:
    given = parse(Config, ["--num_units=64", "--residual", "--nopass_hidden_state", "--dropout=0.5", "--attention="])
    assert given == {
        "num_units": 64,
        "residual": True,
        "pass_hidden_state": False,
        "dropout": 0.5,
        "attention": "",
    }


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("--num_unit=3", "num_units"),  # the suggestion
        ("--num_units=x", "num_units=x"),
        ("stray", "'stray'"),
        ("--num_units", "num_units"),
    ],
)
def test_parse_refuses(argument: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse(Config, [argument])


def test_all_flags_of_the_original_and_those_added() -> None:
    added = {"precision", "learning_rate_scaling", "eval_mode", "evaluate_epochs", "early_stopping_patience"}
    added |= {"model_family", "max_unknown_share", "max_batch_tokens", "divergence", "accumulate_steps", "sync"}
    added |= {"loss_scale", "loss_normalization", "pool_batches", "batch_tokens", "label_smoothing"}
    added |= {"init_from", "freeze", "tie_embeddings", "output_dropout", "src_word_dropout", "tgt_word_dropout"}
    added |= {"adam_beta1", "adam_beta2", "adam_epsilon", "weight_decay"}
    added |= {"embedding_size", "dropout_mask", "r_drop", "preset", "bpe_codes", "src_bpe_dropout", "tgt_bpe_dropout"}
    added |= {"plateau_metric", "plateau_factor", "plateau_patience"}
    added |= {"num_heads", "feed_forward_size", "norm", "positions", "max_positions", "kernel_width"}
    added |= {"attention_dropout", "activation_dropout", "min_length", "ban_unk_token", "shortlist"}
    added.add("compression")
    assert added < set(FIELDS)
    assert len(FIELDS) == 75 + len(added)


def test_choices_are_those_of_the_parts_that_take_them() -> None:
    assert FIELDS["init_op"].metadata["allowed"] == INIT_OPS
    assert FIELDS["decay_scheme"].metadata["allowed"] == DECAY_SCHEMES
    assert FIELDS["warmup_scheme"].metadata["allowed"] == WARMUP_SCHEMES


def test_help_names_every_flag() -> None:
    text = help_text("usage", Config)
    assert all(f"--{name}:" in text for name in FIELDS)


def test_resolve_fills_in() -> None:
    config = resolve(NEEDED | {"num_layers": 3, "residual": True, "sos": ""})
    assert (config.num_encoder_layers, config.num_decoder_layers) == (3, 3)
    assert config.residual_layers == (2, 2)
    assert config.sos == "<s>"
    assert config.random_seed is not None
    assert config.external_eval_interval == 5000
    unequal = resolve(NEEDED | {"num_layers": 3, "num_decoder_layers": 1, "attention": "luong"})
    assert not unequal.pass_hidden_state


@pytest.mark.parametrize(
    ("given", "mode"),
    [
        ({}, "greedy"),
        ({"beam_width": 5}, "beam_search"),
        ({"preset": "small", "share_vocab": True, "infer_mode": "greedy"}, "greedy"),
        ({"beam_width": 5, "infer_mode": "beam_search"}, "beam_search"),
        ({"sampling_temperature": 0.5}, "sample"),
    ],
)
def test_search_mode(given: dict[str, object], mode: str) -> None:
    assert resolve(NEEDED | given).search_mode == mode


@pytest.mark.parametrize(
    ("given", "layers"),
    [
        ({"num_layers": 4}, (0, 0)),
        ({"num_layers": 4, "residual": True}, (3, 3)),
        ({"num_layers": 1, "residual": True}, (0, 0)),
        ({"num_layers": 4, "residual": True, "encoder_type": "gnmt", "attention": "luong"}, (2, 2)),
        (
            {
                "num_encoder_layers": 4, "num_decoder_layers": 3, "residual": True, "encoder_type": "gnmt",
                "attention": "luong",
            },
            (2, 2),
        ),
    ],
)  # fmt: skip
def test_residual_layers(given: dict[str, object], layers: tuple[int, int]) -> None:
    assert resolve(NEEDED | given).residual_layers == layers


def test_a_language_model_has_no_source() -> None:
    config = resolve(NEEDED | {"language_model": True, "attention": "luong", "num_encoder_layers": 3, "src": None})
    assert (config.src, config.share_vocab, config.attention, config.pass_hidden_state) == ("de", True, "", False)
    again = resolve({"out_dir": "o", "src": "en"}, json.loads(config.to_json()))
    assert again.language_model and again.src == "de"


STANDARD = sorted((Path(nmt.__file__).parent / "standard_hparams").glob("*.json"))


@pytest.mark.parametrize("path", STANDARD, ids=lambda path: path.stem)
def test_standard_files(path: Path) -> None:
    config = resolve(NEEDED | read_file(str(path)))
    assert config.batch_size == 128 and config.metric_names == ("bleu",) and config.beam_width == 10
    depth, architecture = {
        "iwslt15": (2, "standard"),
        "wmt16": (4, "standard"),
        "wmt16_gnmt_4_layer": (4, "gnmt_v2"),
        "wmt16_gnmt_8_layer": (8, "gnmt_v2"),
    }[path.stem]
    assert (config.num_encoder_layers, config.num_decoder_layers) == (depth, depth)
    assert config.attention_architecture == architecture


@pytest.mark.parametrize("name", PRESETS[1:])
def test_presets(name: str) -> None:
    """Each is complete, and all of its options have an effect; the log lists what it has set."""
    values = preset(name)
    config = resolve(NEEDED | {"preset": name, "random_seed": 1})
    assert config == dataclasses.replace(resolve(NEEDED | values | {"random_seed": 1}), preset=name)
    (told,) = preset_lines(config)
    assert told.startswith(f"# --preset={name} sets ") and all(
        f"{one}={value}" in told for one, value in values.items()
    )
    assert config.search_mode == "beam_search" and config.tie_embeddings == "all"


def test_presets_stand_behind_flags_and_saved_options() -> None:
    flags = {"preset": "small", "dropout": 0.25, "num_layers": 4}
    first = resolve(NEEDED | flags)
    assert (first.dropout, first.num_encoder_layers, first.label_smoothing) == (0.25, 4, 0.1)
    _, other = preset_lines(first)
    assert other == "# other than in --preset=small: dropout=0.25 (not 0.3), num_layers=4 (not 2)"
    saved = json.loads(first.to_json())
    assert (
        resolve({"out_dir": "o"}, saved).dropout == resolve({"out_dir": "o", "preset": "small"}, saved).dropout == 0.25
    )
    with pytest.raises(InputError, match="--preset=wmt contradicts hparams, where it is 'small'"):
        resolve({"out_dir": "o", "preset": "wmt"}, saved)
    assert preset_lines(resolve(NEEDED)) == []


@pytest.mark.parametrize(
    ("given", "option"),
    [
        ({"infer_mode": "greedy"}, "length_penalty_weight"),
        ({"optimizer": "sgd"}, "adam_beta2"),
        ({"optimizer": "sgd"}, "learning_rate"),
        ({"decay_scheme": "noam"}, "learning_rate"),
        ({"num_sampled_softmax": 9}, "label_smoothing"),
        ({"batch_tokens": 900}, "pool_batches"),
        ({"warmup_steps": 0}, "warmup_scheme"),
    ],
)
def test_what_a_preset_says_gives_way(given: dict[str, object], option: str) -> None:
    assert preset("small")[option] != FIELDS[option].default
    config = resolve(NEEDED | {"preset": "small"} | given)
    assert getattr(config, option) == FIELDS[option].default
    assert f"{option}={FIELDS[option].default} (not " in preset_lines(config)[1]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"preset": "large"}, "--preset=large is not allowed: choose one of '', 'small', 'iwslt', 'wmt'"),
        ({"share_vocab": False}, "needs --share_vocab, .* [(]--preset=small sets --tie_embeddings=all: give another"),
        (
            {"num_encoder_layers": 3},
            "needs an even --num_encoder_layers, not 3 [(]--preset=small sets --encoder_type=bi",
        ),
    ],
)
def test_flags_that_contradict_a_preset(given: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        resolve(NEEDED | {"preset": "small"} | given)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is damaged"),
        ('{"num_unitz": 3}', "num_unitz is not an option that a file may have"),
        ('{"out_dir": "x"}', "out_dir is not an option that a file may have"),
        ('{"num_units": 3.5}', "num_units is 3.5, which is not of type int"),
        ('{"residual": 1}', "residual is 1, which is not of type bool"),
        ('{"dropout": true}', "dropout is True, which is not of type float"),
        ('{"attention": 3}', "attention is 3, which is not of type str"),
        ('{"batch_size": null}', "batch_size is None, which is not of type int"),
    ],
)
def test_files_are_checked(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "file.json"
    path.write_text(text)
    with pytest.raises(InputError) as error:
        read_file(str(path))
    assert message in str(error.value) and "choose another --hparams_path" in str(error.value)
    with pytest.raises(InputError, match="cannot be read"):
        read_file(str(tmp_path / "none.json"))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"attention": "x"}, "--attention=x is not allowed: choose one of '', 'luong'"),
        ({"num_units": 0}, "--num_units=0 is not allowed: it must be more than 0"),
        ({"dropout": 1.0}, "--dropout"),
        ({"learning_rate": -1.0}, "--learning_rate"),
        ({"src": None}, "--src must be given"),
        ({"out_dir": None, "dev_prefix": ""}, "--dev_prefix, --out_dir must be given"),
        ({"tgt": "en"}, "--src=en and --tgt=en"),
        ({"encoder_type": "bi", "num_layers": 3}, "even --num_encoder_layers, not 3"),
        ({"pass_hidden_state": False}, "--attention"),
        ({"num_encoder_layers": 1}, "--attention"),
        ({"num_encoder_layers": 1, "pass_hidden_state": True, "attention": "luong"}, "--pass_hidden_state"),
        ({"infer_mode": "beam_search"}, "--beam_width"),
        ({"init_weight": 0.0}, "--init_weight"),
        ({"ckpt": "c"}, "--ckpt"),
        ({"inference_input_file": "i"}, "--inference_output_file must be given"),
        (
            {
                "inference_input_file": "i",
                "inference_output_file": "o",
                "vocab_prefix": None,
                "out_dir": "d/avg_best_bleu",
            },
            "--vocab_prefix must be given: there is no hparams file next to the checkpoint",
        ),
        ({"inference_list": "1"}, "--inference_list needs --inference_input_file"),
        ({"encoder_type": "gnmt", "num_layers": 1}, "2 or more --num_encoder_layers, not 1"),
        ({"attention_architecture": "gnmt"}, "--attention_architecture=gnmt needs --attention"),
        ({"infer_mode": "sample"}, "--sampling_temperature"),
        ({"num_translations_per_input": 2}, "greedy has one"),
        ({"num_translations_per_input": 3, "beam_width": 2}, "more than the 2 translations that --beam_width finds"),
        ({"coverage_penalty_weight": 0.2}, "--coverage_penalty_weight needs --attention"),
        ({"min_length": 7, "tgt_max_len_infer": 7}, "--min_length=7 does not fit --tgt_max_len_infer=7"),
        ({"shortlist": "s", "language_model": True}, "--shortlist needs the words of a source"),
        ({"num_workers": 3}, "mpirun -n 3"),
        ({"metrics": "bleu,blue"}, "--metrics=bleu,blue is not allowed: name some of bleu, rouge"),
        ({"metrics": ""}, "--metrics= is not allowed"),
        ({"batch_tokens": 9, "max_batch_tokens": 8}, "--max_batch_tokens=8 is less than --batch_tokens=9"),
        (
            {"beam_width": 5, "infer_mode": "greedy"},
            "--beam_width=5 would have no effect: it needs --infer_mode=beam_s",
        ),
        ({"batch_tokens": 9, "batch_size": 8}, "--batch_size=8 would have no effect: it needs no --batch_tokens"),
        (
            {"decay_scheme": "plateau", "evaluate_epochs": False, "num_train_steps": 5000},
            "--decay_scheme=plateau would have no effect: with --noevaluate_epochs and an evaluation every 5000 steps",
        ),
        (
            {"early_stopping_patience": 2, "evaluate_epochs": False, "num_train_steps": 5000},
            "--early_stopping_patience=2 would have no effect",
        ),
        (
            {"early_stopping_patience": 4, "steps_per_external_eval": 3000},
            "--early_stopping_patience=4 would have no effect: 4 intervals of 3000 steps between evaluations",
        ),
        (
            {
                "decay_scheme": "plateau",
                "plateau_metric": "perplexity",
                "steps_per_stats": 1000,
                "num_train_steps": 10_000,
                "steps_per_external_eval": 500,
            },
            "a perplexity every 10000 steps (10 x steps_per_stats), none is computed before --num_train_steps=10000",
        ),
        ({"r_drop": float("inf")}, "--r_drop=inf is not allowed: it must be 0 or more, and finite"),
        ({"sampling_temperature": float("inf")}, "--sampling_temperature=inf is not allowed: it must be 0 or more"),
        ({"warmup_scheme": "linear"}, "--warmup_scheme=linear would have no effect: it needs --warmup_steps"),
        ({"output_attention": False}, "--output_attention=False would have no effect: it needs --attention, and"),
        ({"dropout": 0.0, "r_drop": 5.0}, "--r_drop=5.0 compares two passes, which are the same without dropout"),
        ({"num_sampled_softmax": 3, "r_drop": 5.0}, "it needs --num_sampled_softmax=0"),
        ({"src_bpe_dropout": 0.1, "bpe_codes": "c"}, "it needs --subword_option=bpe and --bpe_codes"),
        ({"bpe_codes": "c"}, "--bpe_codes=c would have no effect: it needs --src_bpe_dropout or --tgt_bpe_dropout"),
        ({"embed_prefix": "e", "embedding_size": 7}, "--embed_prefix has vectors of one width"),
        ({"dropout": 0.0, "dropout_mask": "sentence"}, "it needs --dropout or --output_dropout"),
        ({"use_char_encode": True, "share_vocab": True}, "--use_char_encode has no source vocabulary"),
    ],
)
def test_resolve_refuses(given: dict[str, object], message: str) -> None:
    with pytest.raises(InputError) as error:
        resolve(NEEDED | given)
    assert message in str(error.value)


def test_saved_values_stand_unless_given(tmp_path: Path) -> None:
    first = resolve(NEEDED | {"num_units": 7, "subword_option": "bpe", "num_layers": 4})
    (tmp_path / "hparams").write_text(first.to_json(src_vocab_size=3))
    saved = read_saved(f"{tmp_path}/hparams")
    assert saved["src_vocab_size"] == 3
    assert "out_dir" not in saved
    again = resolve({"out_dir": "o", "batch_size": 9, "num_layers": 4}, saved)
    assert again == dataclasses.replace(first, batch_size=9)


def test_a_plateau_compares_one_figure() -> None:
    scored = {"decay_scheme": "plateau", "metrics": "rouge,bleu"}
    saved = json.loads(resolve(NEEDED | scored).to_json())
    again = {"out_dir": "o", "metrics": "bleu"}
    with pytest.raises(InputError, match="--metrics=bleu does not begin with rouge, which --decay_scheme=plateau"):
        resolve(again, saved)
    assert resolve(again | {"metrics": "rouge"}, saved).metric_names == ("rouge",)
    assert resolve(again, saved | {"plateau_metric": "perplexity"}).metric_names == ("bleu",)
    translating = {"inference_input_file": "i", "inference_output_file": "o"}
    assert resolve(again | translating, saved).metric_names == ("bleu",)
    never = {"evaluate_epochs": False, "num_train_steps": 9}  # options that an older run's model may have
    assert resolve(again | translating, saved | never).decay_scheme == "plateau"
    with pytest.raises(InputError, match="--decay_scheme=plateau contradicts --decay_scheme= of the run that is"):
        resolve({"out_dir": "o", "decay_scheme": "plateau"}, json.loads(resolve(NEEDED).to_json()))


def test_tokens_of_a_batch_can_be_given_up() -> None:
    saved = json.loads(resolve(NEEDED | {"batch_tokens": 90}).to_json())
    with pytest.raises(InputError, match="or --batch_tokens=0"):
        resolve({"out_dir": "o", "batch_size": 9}, saved)
    assert resolve({"out_dir": "o", "batch_size": 9, "batch_tokens": 0}, saved).batch_size == 9


@pytest.mark.parametrize("flag", [{"num_units": 8}, {"num_layers": 3}, {"sos": "<sos>"}, {"tgt": "fr"}])
def test_architecture_and_vocabulary_stay(flag: dict[str, object]) -> None:
    saved = json.loads(resolve(NEEDED).to_json())
    with pytest.raises(InputError, match="contradicts out/hparams"):
        resolve({"out_dir": "out"} | flag, saved, "out/hparams")


@pytest.mark.parametrize("text", ["", "[]", '{"num_units": "8"}', '{"num_units": null}', '{"residual": 1}', "\xff"])
def test_damaged_hparams(text: str, tmp_path: Path) -> None:
    (tmp_path / "hparams").write_bytes(text.encode("latin-1"))
    with pytest.raises(InputError, match="/hparams.*choose another out_dir"):
        read_saved(f"{tmp_path}/hparams")


def test_hparams_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="/hparams cannot be read.*choose another out_dir"):
        read_saved(f"{tmp_path}/hparams")


def test_json_is_sorted_and_complete() -> None:
    text = resolve(NEEDED).to_json()
    keys = list(json.loads(text))
    assert keys == sorted(keys)
    assert '\n    "attention": ""' in text
    assert set(keys) == {name for name, field in FIELDS.items() if field.metadata["saved"]}


def test_every_option_has_help_and_a_default_that_is_allowed() -> None:
    for field in dataclasses.fields(Config):
        assert field.metadata["help"], field
        allowed = field.metadata["allowed"]
        assert not allowed or field.default is None or field.default in allowed, field


def test_a_plateau_of_perplexities_goes_by_their_interval() -> None:
    plateau = {"decay_scheme": "plateau", "plateau_metric": "perplexity", "steps_per_stats": 50}
    resolve(NEEDED | plateau | {"num_train_steps": 5000, "steps_per_external_eval": 5000, "evaluate_epochs": False})


def test_a_run_that_began_with_evaluations_that_are_too_few_goes_on() -> None:
    kept = json.loads(resolve(NEEDED).to_json()) | {"early_stopping_patience": 3}  # 3 times 5,000 of 12,000 steps
    resolve({"out_dir": "o"}, kept)
    with pytest.raises(InputError, match="--early_stopping_patience=4 would have no effect"):
        resolve({"out_dir": "o", "early_stopping_patience": 4}, kept)


def test_what_a_run_keeps_may_contradict_what_is_asked_of_it_now() -> None:
    saved = json.loads(resolve(NEEDED | {"label_smoothing": 0.1, "decay_scheme": "plateau"}).to_json())
    with pytest.raises(InputError, match="--num_sampled_softmax=3 contradicts --label_smoothing=0.1, .* give --label_"):
        resolve({"out_dir": "o", "num_sampled_softmax": 3}, saved)
    resolve({"out_dir": "o", "num_sampled_softmax": 3, "label_smoothing": 0.0}, saved)
    with pytest.raises(InputError, match="--plateau_factor=0.9 contradicts hparams, where it is 0.5"):
        resolve({"out_dir": "o", "plateau_factor": 0.9}, saved)


def test_vectors_of_ones_own_take_the_place_of_a_presets_width() -> None:
    config = resolve(NEEDED | {"preset": "wmt", "embed_prefix": "e", "tie_embeddings": "none"})
    assert preset("wmt")["embedding_size"] and config.embedding_size is None


@pytest.mark.parametrize(
    "given",
    [
        {"model_family": "transformer", "dropout": 0.0, "attention_dropout": 0.1, "r_drop": 5.0},
        {"model_family": "transformer", "dropout": 0.0, "activation_dropout": 0.1, "dropout_mask": "sentence"},
        {"model_family": "transformer", "use_char_encode": True, "init_weight": 0.05},
        {"model_family": "convs2s", "language_model": True, "max_positions": 40, "tgt_max_len": 39},
        {"model_family": "convs2s", "beam_width": 5, "coverage_penalty_weight": 0.2},
    ],
)
def test_what_families_make_of_options(given: dict[str, object]) -> None:
    resolve(NEEDED | given)


def test_a_language_model_has_no_coverage() -> None:
    given = {"model_family": "transformer", "language_model": True, "beam_width": 5, "coverage_penalty_weight": 0.2}
    with pytest.raises(InputError, match="needs a source, which --language_model has not"):
        resolve(NEEDED | given)
