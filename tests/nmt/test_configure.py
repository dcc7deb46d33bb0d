"""The command line, the saved configuration, and what they may not say."""

from __future__ import annotations

import dataclasses
import json

import pytest

from nmt.config import FIELDS, Config
from nmt.configure import NOT_SUPPORTED, help_text, parse, read_saved, resolve
from nmt.errors import InputError
from nmt.model.initializers import INIT_OPS
from nmt.train.schedule import DECAY_SCHEMES, WARMUP_SCHEMES

NEEDED = {
    "src": "en",
    "tgt": "de",
    "train_prefix": "t",
    "dev_prefix": "d",
    "vocab_prefix": "v",
    "out_dir": "o",
}


def test_parse_keeps_what_was_given_only() -> None:
    given = parse(["--num_units=64", "--residual", "--nopass_hidden_state", "--dropout=0.5", "--attention="])
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
        ("--share_vocab", "--share_vocab is not supported yet"),
        ("--nocheck_special_token", "not supported yet"),
        ("stray", "'stray'"),
        ("--num_units", "num_units"),
    ],
)
def test_parse_refuses(argument: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse([argument])


def test_supported_and_unsupported_flags_are_apart() -> None:
    assert not NOT_SUPPORTED & set(FIELDS)
    # The original has 75 flags; the others are precision and learning_rate_scaling.
    assert len(NOT_SUPPORTED) + len(FIELDS) == 75 + 2


def test_choices_are_those_of_the_parts_that_take_them() -> None:
    assert FIELDS["init_op"].metadata["allowed"] == INIT_OPS
    assert FIELDS["decay_scheme"].metadata["allowed"] == DECAY_SCHEMES
    assert FIELDS["warmup_scheme"].metadata["allowed"] == WARMUP_SCHEMES


def test_help_names_every_flag() -> None:
    text = help_text()
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
    ("given", "width"),
    [
        ({}, 0),
        ({"beam_width": 5}, 5),
        ({"beam_width": 5, "infer_mode": "greedy"}, 0),
        ({"beam_width": 5, "infer_mode": "beam_search"}, 5),
    ],
)
def test_search_width(given: dict[str, object], width: int) -> None:
    assert resolve(NEEDED | given).search_width == width


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
        ({"inference_input_file": "i"}, "--inference_output_file"),
    ],
)
def test_resolve_refuses(given: dict[str, object], message: str) -> None:
    with pytest.raises(InputError) as error:
        resolve(NEEDED | given)
    assert message in str(error.value)


def test_saved_values_stand_unless_given() -> None:
    first = resolve(NEEDED | {"num_units": 7, "subword_option": "bpe", "num_layers": 4})
    saved = read_saved(first.to_json(src_vocab_size=3), "hparams")
    assert saved["src_vocab_size"] == 3
    assert "out_dir" not in saved
    again = resolve({"out_dir": "o", "batch_size": 9, "num_layers": 4}, saved)
    assert again == dataclasses.replace(first, batch_size=9)


@pytest.mark.parametrize("flag", [{"num_units": 8}, {"num_layers": 3}, {"sos": "<sos>"}, {"tgt": "fr"}])
def test_architecture_and_vocabulary_stay(flag: dict[str, object]) -> None:
    saved = json.loads(resolve(NEEDED).to_json())
    with pytest.raises(InputError, match="contradicts out/hparams"):
        resolve({"out_dir": "out"} | flag, saved, "out/hparams")


@pytest.mark.parametrize("text", ["", "[]", '{"num_units": "8"}', '{"num_units": null}', '{"residual": 1}'])
def test_damaged_hparams(text: str) -> None:
    with pytest.raises(InputError, match="out/hparams"):
        read_saved(text, "out/hparams")


def test_json_is_sorted_and_complete() -> None:
    text = resolve(NEEDED).to_json()
    keys = list(json.loads(text))
    assert keys == sorted(keys)
    assert '\n    "attention": ""' in text
    assert set(keys) == {name for name, field in FIELDS.items() if field.metadata["saved"]}


def test_every_option_has_help_and_a_default_that_is_allowed() -> None:
    for field in dataclasses.fields(Config):
        assert field.metadata["help"]
        allowed = field.metadata["allowed"]
        assert not allowed or field.default is None or field.default in allowed
