"""For each option: a test of its effect, or a check that it reaches the part that has such tests."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from nmt.options import derived_settings
from nmt.options.config import FIELDS
from nmt.options.option import make
from nmt.options.resolve import resolve
from nmt.runs import inputs
from nmt.search.translation_model import SearchSettings
from nmt.text.vocabulary import write_vocabulary
from nmt.train.feed import FeedSettings
from nmt.train.synchronisation import Synchronisation
from tests.nmt.options.test_configuration import NEEDED
from tests.nmt.options.test_flags import WITHOUT_EFFECT

# Options of the whole program, with the test that would fail if the option did nothing.
SHOWN = {
    "src": "test_train_continue_and_translate",
    "tgt": "test_train_continue_and_translate",
    "train_prefix": "test_train_continue_and_translate",
    "dev_prefix": "test_train_continue_and_translate",
    "test_prefix": "test_train_continue_and_translate",
    "vocab_prefix": "test_train_continue_and_translate",
    "out_dir": "test_train_continue_and_translate",
    "ckpt": "test_train_continue_and_translate",
    "inference_input_file": "test_train_continue_and_translate",
    "inference_output_file": "test_train_continue_and_translate",
    "sos": "test_marks_of_sentences",
    "eos": "test_marks_of_sentences",
    "share_vocab": "test_share_vocab_has_one_embedding",
    "precision": "test_half_precision_trains_nearly_alike",
    "max_unknown_share": "test_texts_must_fit_their_vocabularies",
    "check_special_token": "test_bad_input",
    "use_char_encode": "test_characters",
    "embed_prefix": "test_pretrained_embeddings",
    "num_embeddings_partitions": "test_partitions_leave_the_result",
    "language_model": "test_language_model",
    "num_sampled_softmax": "test_sampled_softmax_trains_otherwise",
    "log_device_placement": "test_settings_of_sessions",
    "num_inter_threads": "test_settings_of_sessions",
    "num_intra_threads": "test_settings_of_sessions",
    "num_gpus": "test_the_command_of_the_ddl_article",
    "metrics": "test_a_list_of_lines_with_scores_and_pictures",
    "inference_list": "test_a_list_of_lines_with_scores_and_pictures",
    "inference_ref_file": "test_a_list_of_lines_with_scores_and_pictures",
    "eval_mode": "test_a_shared_evaluation_says_what_rank_0_says",
    "num_keep_ckpts": "test_checkpoints_are_averaged",
    "avg_ckpts": "test_checkpoints_are_averaged",
    "preset": "test_presets_stand_behind_flags_and_saved_options",
    "bpe_codes": "test_words_are_cut_anew_in_each_epoch",
    "hparams_path": "test_a_file_of_options_comes_before_flags",
    "override_loaded_hparams": "test_loaded_options_can_be_overridden",
    "num_workers": "test_workers_are_ranks",
    "num_layers": "test_depths",
    "model_family": "test_a_toy_family_trains_and_translates",
    "init_from": "test_all_weights_are_kept_and_the_optimizer_is_new",
}


_vocabularies: Any = None


def architecture(**given: Any) -> Any:
    return derived_settings.architecture(resolve(NEEDED | given), _vocabularies, {})


def search(**given: Any) -> Any:
    return make(SearchSettings, resolve(NEEDED | given))


def optimization(**given: Any) -> Any:
    return derived_settings.optimization(resolve(NEEDED | given), 4)


def schedule(**given: Any) -> Any:
    return optimization(**given).schedule


def plateau(**given: Any) -> Any:
    return optimization(**given, decay_scheme="plateau").plateau


def cadence(**given: Any) -> Any:
    return derived_settings.cadence(resolve(NEEDED | given))


def synchronisation(**given: Any) -> Any:
    return make(Synchronisation, resolve(NEEDED | given))


def feed(**given: Any) -> Any:
    return make(FeedSettings, resolve(NEEDED | given))


TRANSFORMER = {"model_family": "transformer", "num_units": 32}
CONVS2S = {"model_family": "convs2s"}
CODES = {"bpe_codes": "c", "subword_option": "bpe", "src_bpe_dropout": 0.5, "tgt_bpe_dropout": 0.5}
BMUF = {"sync": "bmuf", "block_steps": 5}
# (maker, its attribute, the option's value, the attribute's value then, other options needed)
PASSED_ON: dict[str, tuple[Any, str, Any, Any, dict[str, Any]]] = {
    "subword_option": (search, "subword_option", "spm", "spm", {}),
    "src_max_len": (feed, "src_max_len", 7, 7, {}),
    "tgt_max_len": (feed, "tgt_max_len", 7, 7, {}),
    "num_buckets": (feed, "num_buckets", 3, 3, {}),
    "batch_size": (feed, "batch_size", 7, 7, {}),
    "accumulate_steps": (feed, "accumulate_steps", 7, 7, {}),
    "tie_embeddings": (architecture, "tie_embeddings", "decoder", "decoder", {}),
    "embedding_size": (architecture, "tgt_embedding_size", 5, 5, {}),
    "dropout_mask": (optimization, "dropout_mask", "sentence", "sentence", {}),
    "output_dropout": (optimization, "output_dropout", 0.1, 0.1, {}),
    "src_word_dropout": (optimization, "src_word_dropout", 0.1, 0.1, {}),
    "tgt_word_dropout": (optimization, "tgt_word_dropout", 0.1, 0.1, {}),
    "src_bpe_dropout": (feed, "src_bpe_dropout", 0.1, 0.1, CODES),
    "tgt_bpe_dropout": (feed, "tgt_bpe_dropout", 0.1, 0.1, CODES),
    "freeze": (optimization, "freeze", "encoder,output", "encoder,output", {}),
    "r_drop": (optimization, "r_drop", 0.5, 0.5, {}),
    "label_smoothing": (optimization, "label_smoothing", 0.1, 0.1, {}),
    "pool_batches": (feed, "pool_batches", 7, 7, {}),
    "batch_tokens": (feed, "batch_tokens", 70, 70, {}),
    "loss_normalization": (feed, "loss_normalization", "words", "words", {}),
    "loss_scale": (optimization, "loss_scale", "logmax", "logmax", {}),
    "max_batch_tokens": (feed, "max_batch_tokens", 7, 7, {}),
    "random_seed": (feed, "seed", 7, 7, {}),
    "num_units": (architecture, "num_units", 7, 7, {}),
    "num_encoder_layers": (architecture, "num_encoder_layers", 4, 4, {"attention": "luong"}),
    "num_decoder_layers": (architecture, "num_decoder_layers", 4, 4, {"attention": "luong"}),
    "encoder_type": (architecture, "encoder_type", "bi", "bi", {}),
    "residual": (architecture, "num_encoder_residual_layers", True, 1, {}),
    "attention": (architecture, "attention", "luong", "luong", {}),
    "attention_architecture": (architecture, "attention_architecture", "gnmt_v2", "gnmt_v2", {"attention": "luong"}),
    "output_attention": (architecture, "output_attention", False, False, {"attention": "luong"}),
    "pass_hidden_state": (architecture, "pass_hidden_state", False, False, {"attention": "luong"}),
    "unit_type": (architecture, "unit_type", "nas", "nas", {}),
    "forget_bias": (architecture, "forget_bias", 0.5, 0.5, {}),
    "num_heads": (architecture, "num_heads", 4, 4, TRANSFORMER),
    "feed_forward_size": (architecture, "inner_size", 40, 40, TRANSFORMER),
    "norm": (architecture, "norm", "pre", "pre", TRANSFORMER),
    "positions": (architecture, "positions", "learned", "learned", TRANSFORMER),
    "max_positions": (architecture, "max_positions", 70, 70, CONVS2S),
    "kernel_width": (architecture, "kernel_width", 5, 5, CONVS2S),
    "attention_dropout": (optimization, "attention_dropout", 0.1, 0.1, TRANSFORMER),
    "activation_dropout": (optimization, "activation_dropout", 0.1, 0.1, TRANSFORMER),
    "optimizer": (optimization, "optimizer", "adam", "adam", {}),
    "adam_beta1": (optimization, "adam_beta1", 0.8, 0.8, {"optimizer": "adam"}),
    "adam_beta2": (optimization, "adam_beta2", 0.8, 0.8, {"optimizer": "adam"}),
    "adam_epsilon": (optimization, "adam_epsilon", 1e-6, 1e-6, {"optimizer": "adam"}),
    "weight_decay": (optimization, "weight_decay", 0.1, 0.1, {}),
    "dropout": (optimization, "dropout", 0.5, 0.5, {}),
    "max_gradient_norm": (optimization, "max_gradient_norm", 0.5, 0.5, {}),
    "colocate_gradients_with_ops": (optimization, "colocate_gradients_with_ops", False, False, {}),
    "learning_rate": (schedule, "learning_rate", 0.5, 0.5, {}),
    "learning_rate_scaling": (schedule, "learning_rate", "sqrt", 2.0, {}),
    "warmup_steps": (schedule, "warmup_steps", 5, 5, {}),
    "warmup_scheme": (schedule, "warmup_scheme", "linear", "linear", {"warmup_steps": 5}),
    "decay_scheme": (schedule, "decay_scheme", "luong5", "luong5", {}),
    "plateau_metric": (plateau, "metric", "perplexity", "ppl", {}),
    "plateau_factor": (plateau, "factor", 0.1, 0.1, {}),
    "plateau_patience": (plateau, "patience", 5, 5, {}),
    "sync": (synchronisation, "sync", "average", "average", {"block_steps": 5}),
    "block_steps": (synchronisation, "block_steps", 7, 7, {"sync": "bmuf", "block_steps": 5}),
    "block_momentum": (synchronisation, "block_momentum", 0.5, 0.5, BMUF),
    "block_learning_rate": (synchronisation, "block_learning_rate", 0.5, 0.5, BMUF),
    "block_scale": (synchronisation, "block_scale", 0.5, 0.5, BMUF),
    "block_nesterov": (synchronisation, "block_nesterov", True, True, BMUF),
    "block_state": (synchronisation, "block_state", "keep", "keep", BMUF),
    "block_warmup": (synchronisation, "block_warmup", 5, 5, BMUF),
    "block_fragments": (synchronisation, "block_fragments", 5, 5, BMUF),
    "block_delay": (synchronisation, "block_delay", 2, 2, BMUF),
    "block_alpha": (synchronisation, "block_alpha", 0.25, 0.25, {**BMUF, "block_delay": 2}),
    "compression": (synchronisation, "compression", "int8", "int8", {}),
    "num_train_steps": (cadence, "num_train_steps", 5, 5, {}),
    "steps_per_stats": (cadence, "steps_per_external_eval", 5, 250, {}),
    "steps_per_external_eval": (cadence, "steps_per_external_eval", 5, 5, {}),
    "evaluate_epochs": (cadence, "evaluate_epochs", False, False, {}),
    "early_stopping_patience": (cadence, "early_stopping_patience", 2, 2, {}),
    "src_max_len_infer": (search, "src_max_len", 5, 5, {}),
    "tgt_max_len_infer": (search, "tgt_max_len", 5, 5, {}),
    "min_length": (search, "min_length", 5, 5, {}),
    "ban_unk_token": (search, "ban_unk_token", True, True, {}),
    "shortlist": (search, "shortlist", "s", "s", {}),
    "infer_batch_size": (search, "batch_size", 5, 5, {}),
    "infer_mode": (search, "mode", "greedy", "greedy", {"beam_width": 3, "hparams_path": "f"}),
    "beam_width": (search, "beam_width", 3, 3, {}),
    "length_penalty_weight": (search, "length_penalty_weight", 0.5, 0.5, {"beam_width": 3}),
    "coverage_penalty_weight": (
        search, "coverage_penalty_weight", 0.5, 0.5, {"beam_width": 3, "attention": "luong"},
    ),
    "sampling_temperature": (search, "sampling_temperature", 0.5, 0.5, {}),
    "num_translations_per_input": (search, "translations_per_input", 2, 2, {"beam_width": 3}),
}  # fmt: skip
ELSEWHERE = {
    "init_op": "test_initial_weights",
    "init_weight": "test_initial_weights",
    "divergence": "test_a_run_that_diverges_goes_back",
}


@pytest.fixture(autouse=True)
def vocabularies(tmp_path: Path) -> None:
    """Write the vocabularies that the functions above read."""
    global _vocabularies
    words = [f"w{n}" for n in range(20)]
    _vocabularies = (write_vocabulary(tmp_path / "v.en", words), write_vocabulary(tmp_path / "v.de", words))


def test_no_option_is_left_out() -> None:
    tables = [set(WITHOUT_EFFECT), set(SHOWN), set(PASSED_ON), set(ELSEWHERE)]
    assert set.union(*tables) == set(FIELDS)
    assert sum(map(len, tables)) == len(FIELDS)
    text = "".join(path.read_text() for path in Path(__file__).parents[1].rglob("test_*.py"))
    written = set(re.findall(r"^def (test_\w+)", text, re.MULTILINE))
    assert not (set(SHOWN.values()) | set(ELSEWHERE.values())) - written


@pytest.mark.parametrize("name", PASSED_ON)
def test_options_reach_their_parts(name: str) -> None:
    make, attribute, value, wanted, others = PASSED_ON[name]
    without = {"sync": {}}.get(name, others)
    assert getattr(make(**without), attribute) != wanted or FIELDS[name].default == value
    assert getattr(make(**{**others, name: value}), attribute) == wanted


def test_depths() -> None:
    shape = architecture(num_layers=3, num_decoder_layers=2, attention="luong")
    assert (shape.num_encoder_layers, shape.num_decoder_layers) == (3, 2)


def test_initial_weights() -> None:
    from nmt.runs.training_run import initial_weights

    shape = architecture()
    drawn = initial_weights(resolve(NEEDED | {"init_weight": 0.5, "random_seed": 3}), shape, inputs.Vectors())
    assert (drawn.init_op, drawn.init_weight, drawn.seed) == ("uniform", 0.5, 3)
    assert initial_weights(resolve(NEEDED | {"init_op": "glorot_normal"}), shape, inputs.Vectors()).init_op != "uniform"


def test_what_options_make_takes_them() -> None:
    for name, field in FIELDS.items():
        for setting, argument in field.metadata["makes"]:
            assert (argument or name) in inspect.signature(setting).parameters, name
