"""Languages without spaces between words: sacreBLEU's tokenisation scores them, and decides which model is best."""

from __future__ import annotations

import json
import random
import re
import types
from pathlib import Path
from typing import Any

import pytest
from sacrebleu.metrics import BLEU
from sacrebleu.tokenizers import tokenizer_ja_mecab

from nmt.nmt import main as nmt
from nmt.prepare import prepare
from nmt.score import main as score_main
from nmt.scoring import tokenisation
from nmt.scoring.metrics import METRICS
from nmt.scoring.score import score

ENGLISH = "red green blue big small old new dog cat bird house tree car man woman"
WORDS = {
    "zh": "红 绿 蓝 大 小 老 新 狗 猫 鸟 房 树 车 男 女",
    "jpn": "赤い 緑の 青い 大きい 小さい 古い 新しい 犬 猫 鳥 家 木 車 男 女",
}


@pytest.mark.parametrize(
    ("codes", "wanted"),
    [
        ("zh ZH zh_CN zh-tw zho zho_Hans chi cmn tok.zh", "zh"),
        ("ja jpn ja_JP ko kor KO th tha lo lao km my mya bo", "char"),
        ("en de vi tr he hi ar fi ru", "13a"),
    ],
)
def test_the_code_of_the_language_decides(codes: str, wanted: str) -> None:
    """Without the packages of MeCab its languages are compared by characters."""
    for language in codes.split():
        assert tokenisation.tokenisation(language) == wanted, language
        assert tokenisation.is_without_spaces(language) == (wanted != "13a") == bool(tokenisation.remarks(language))
    assert "as ja-mecab is not installed (pip install 'sacrebleu[ja]')" in tokenisation.remarks("jpn")[0]


def test_mecab_is_used_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    tagger = types.SimpleNamespace(
        dictionary_info=lambda: types.SimpleNamespace(size=392126, next=None),
        version=lambda: "0.996",
        parse=lambda line: line.replace("が", " が "),
    )
    monkeypatch.setattr(tokenizer_ja_mecab, "MeCab", types.SimpleNamespace(Tagger=lambda _: tagger))
    monkeypatch.setattr(tokenizer_ja_mecab, "ipadic", types.SimpleNamespace(MECAB_ARGS=""), raising=False)
    tokenisation.tokenisation.cache_clear()
    try:
        assert tokenisation.tokenisation("ja") == "ja-mecab" and "installed" not in tokenisation.remarks("ja")[0]
        assert tokenisation.tokenised(["猫が寝る"], "ja") == ["猫 が 寝る"]
        assert "ja-mecab" in score(["猫が寝る"], ["猫が寝る"], language="ja").sacre_bleu.signature
    finally:
        tokenisation.tokenisation.cache_clear()


def test_metrics_are_of_the_words_of_the_language() -> None:
    """Spaces in the lines change nothing; a language with spaces has the tutorial's figures."""
    found, wanted = ["猫在院子里睡觉。", "男人开红车。"], ["猫在院子睡觉。", "男人开红色车。"]
    scores = score(found, wanted, list(METRICS), language="zh")
    assert scores.metrics["bleu"] == BLEU(tokenize="zh").corpus_score(found, [wanted]).score > 50
    assert scores.metrics["word_accuracy"] > 50 and scores.metrics["rouge"] > 80
    assert score([" ".join(line) for line in found], wanted, language="zh").metrics["bleu"] == scores.metrics["bleu"]
    for language in ("de", ""):
        plain = score(found, wanted, list(METRICS), language=language)
        assert plain.metrics == {name: metric(found, wanted) for name, metric in METRICS.items()}
        assert "tok:none" in plain.sacre_bleu.signature


@pytest.mark.parametrize(("language", "kind"), [("zh", "zh"), ("jpn", "char")])
def test_a_training_keeps_its_best_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], language: str, kind: str
) -> None:
    """Early stopping and plateau decay look at the same figure, which nmt.score gives, too."""
    drawn = random.Random(3)
    for name, pairs in (("train", 300), ("dev", 30)):
        rows = [[drawn.randrange(15) for _ in range(drawn.randint(3, 6))] for _ in range(pairs)]
        for suffix, words, between, end in (("en", ENGLISH, " ", "."), (language, WORDS[language], "", "。")):
            lines = (between.join(words.split()[k] for k in row) + end + "\n" for row in rows)
            (tmp_path / f"{name}.{suffix}").write_text("".join(lines), encoding="utf-8")
    text: dict[str, Any] = {"apply": [f"{tmp_path}/dev"], "tokenizer": "sentencepiece", "spm": 90}
    prepare(f"{tmp_path}/train", "en", language, tmp_path / "data", **text)
    flags = [
        f"--train_prefix={tmp_path}/data/train", f"--dev_prefix={tmp_path}/data/dev", f"--out_dir={tmp_path}/run",
        f"--vocab_prefix={tmp_path}/data/vocab", "--num_units=64", "--num_layers=1", "--attention=scaled_luong",
        "--batch_size=32", "--steps_per_stats=100", "--optimizer=adam", "--learning_rate=0.01", "--dropout=0.1",
        "--noevaluate_epochs", "--steps_per_external_eval=60", "--early_stopping_patience=1", "--num_train_steps=180",
        "--random_seed=3", "--decay_scheme=plateau", "--plateau_patience=1",
    ]  # fmt: skip
    assert nmt(flags) == 0
    said = capsys.readouterr().out
    figures = [float(figure) for figure in re.findall(r"^  sacrebleu dev: ([\d.]+)", said, re.MULTILINE)]
    assert said.count(f"the words of its tokenisation {kind}") == 1 and "tokenised" not in said.split("# Best bleu")[0]
    assert figures[2] > figures[1] > figures[0] > 0 and "Stopping early" not in said and "No better" not in said
    record = json.loads((tmp_path / "run/best_bleu/best.json").read_text())
    assert record["bleu"] == pytest.approx(max(figures), abs=0.006) and f"tok:{kind}" in said
    files = [f"--hypotheses={tmp_path}/run/output_dev", f"--references={tmp_path}/dev.{language}"]
    assert score_main(["score", *files, f"--language={language}", "--format=json"]) == 0
    scored = capsys.readouterr()
    bleu, *_, ter, tokenised = json.loads(scored.out)[:5]
    assert bleu["score"] == tokenised["score"] == pytest.approx(figures[-1], abs=0.006)
    assert "asian:yes" in ter["signature"] and f"its tokenisation {kind}" in scored.err
