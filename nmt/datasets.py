"""Public parallel texts: downloads them and converts them to the files that training reads.

    python -m nmt.datasets --dataset=iwslt15|wmt16|multi30k --out_dir=D [--address=URL]

downloads, unpacks and tokenises the files that are not in D yet. Then it prints the training commands that correspond
to published results. All files of a dataset are below one address; `--address` names a mirror (any URL that Python's
urllib opens, file:// included).

- IWSLT 2015 English-Vietnamese (Cettolo et al. 2015; tokenised by Luong & Manning 2015)
- WMT 2016 English-German (Bojar et al. 2016; Europarl 7, Common Crawl, News Commentary 11)
- Multi30k (Elliott et al. 2016)
"""

from __future__ import annotations

import gzip
import hashlib
import html
import http.client
import re
import sys
import tarfile
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from nmt.core.errors import InputError
from nmt.core.files import make_directory, replace_atomically
from nmt.options.command import run
from nmt.options.option import option
from nmt.text.raw_words import tokenizer

_MOST_TOKENS = 80  # WMT's training text is without longer sentences


@dataclass(frozen=True)
class Part:
    """A text file of one language to download, or a piece of such a file.

    Attributes:
      name: name of the resulting file, such as "train.en"; pieces with equal names are concatenated in order.
      path: path of the file or archive below the dataset's address.
      member: path of the file inside a tar archive; "" if `path` is the file.
    """

    name: str
    path: str
    member: str = ""


@dataclass(frozen=True)
class Dataset:
    """A public parallel text.

    Attributes:
      address: URL that the paths of `parts` are relative to.
      parts: the files to download.
      languages: suffixes of the files of the two languages.
      raw: whether the text must be tokenised, and the training text filtered by length.
      commands: shell commands that train on the text, with {out} for the directory.
      digests: SHA-256 of the files, by path, as far as they are known.
    """

    address: str
    parts: Sequence[Part]
    languages: tuple[str, str]
    raw: bool
    commands: str
    digests: Mapping[str, str] = field(default_factory=dict)


def _both(name: str, path: str, languages: Sequence[str], member: str = "") -> list[Part]:
    """Return the parts of both languages; {} in `path` and `member` is replaced by the language."""
    return [Part(f"{name}.{x}", path.format(x), member.format(x)) for x in languages]


_EN_DE = ("en", "de")
_MULTI30K = "data/task1/tok/{}.lc.norm.tok.{{}}"
DATASETS = {
    "iwslt15": Dataset(
        "https://nlp.stanford.edu/projects/nmt/data/iwslt15.en-vi",
        [p for name in ("train", "tst2012", "tst2013", "vocab") for p in _both(name, name + ".{}", ("en", "vi"))],
        ("en", "vi"),
        False,
        """# Published: 23.8 dev and 26.1 test BLEU with beam 10 (23.2 and 25.5 greedy).
mpirun -n 1 python -m nmt.nmt --src=en --tgt=vi --hparams_path=nmt/standard_hparams/iwslt15.json \\
    --train_prefix={out}/train --dev_prefix={out}/tst2012 --test_prefix={out}/tst2013 \\
    --vocab_prefix={out}/vocab --out_dir={out}/model""",
    ),
    "wmt16": Dataset(
        "https://www.statmt.org",
        [
            *_both("train", "europarl/v7/de-en.tgz", _EN_DE, "europarl-v7.de-en.{}"),
            *_both("train", "wmt13/training-parallel-commoncrawl.tgz", _EN_DE, "commoncrawl.de-en.{}"),
            *_both(
                "train",
                "wmt16/translation-task/training-parallel-nc-v11.tgz",
                _EN_DE,
                "training-parallel-nc-v11/news-commentary-v11.de-en.{}",
            ),
            Part("newstest2013.en", "wmt16/translation-task/dev.tgz", "dev/newstest2013-src.en.sgm"),
            Part("newstest2013.de", "wmt16/translation-task/dev.tgz", "dev/newstest2013-ref.de.sgm"),
            Part("newstest2015.en", "wmt16/translation-task/dev.tgz", "dev/newstest2015-deen-ref.en.sgm"),
            Part("newstest2015.de", "wmt16/translation-task/dev.tgz", "dev/newstest2015-deen-src.de.sgm"),
        ],
        _EN_DE,
        True,
        """# Published, German to English: 28.0 on newstest2013 and 28.9 on newstest2015 with beam 10.
python -m nmt.prepare --train_prefix={out}/train --src=de --tgt=en --out_dir={out}/bpe --bpe=32000 \\
    --apply={out}/newstest2013,{out}/newstest2015
mpirun -n 1 python -m nmt.nmt --src=de --tgt=en --hparams_path=nmt/standard_hparams/wmt16.json \\
    --train_prefix={out}/bpe/train --dev_prefix={out}/bpe/newstest2013 --test_prefix={out}/bpe/newstest2015 \\
    --vocab_prefix={out}/bpe/vocab --out_dir={out}/model""",
    ),
    "multi30k": Dataset(
        "https://raw.githubusercontent.com/multi30k/dataset/66b36a880c0a217415dbf79c5778e08ffdbf48be",
        [p for name in ("train", "val", "test_2016_flickr") for p in _both(name, _MULTI30K.format(name), _EN_DE)],
        _EN_DE,
        False,
        """# These settings have reached 36.5 BLEU on test_2016_flickr.
python -m nmt.prepare --train_prefix={out}/train --src=en --tgt=de --out_dir={out}/bpe --bpe=6000 \\
    --apply={out}/val,{out}/test_2016_flickr
mpirun -n 2 python -m nmt.nmt --src=en --tgt=de \\
    --train_prefix={out}/bpe/train --dev_prefix={out}/bpe/val --test_prefix={out}/bpe/test_2016_flickr \\
    --vocab_prefix={out}/bpe/vocab --out_dir={out}/model --encoder_type=bi --attention=scaled_luong \\
    --num_units=256 --num_layers=2 --optimizer=adam --learning_rate=0.001 --warmup_steps=300 \\
    --decay_scheme=luong5 --dropout=0.3 --batch_size=64 --num_train_steps=4800 \\
    --steps_per_external_eval=1200 --noevaluate_epochs --subword_option=bpe --beam_width=5 \\
    --length_penalty_weight=1.0""",
        {
            _MULTI30K.format(name).format(language): digest
            for name, language, digest in (
                ("train", "en", "08925f8e0572bcd5a006702fc5fe20e2d77c6917d4eebd576fc20de6693c2119"),
                ("train", "de", "cb5a23529b65ec2061f1dc446192a9c37382b63cc75f81a0be59d34894b3a505"),
                ("val", "en", "46573ce391ae227f1c72f873392436a20ef18e0a6d518098cfbd70b77c8572ec"),
                ("val", "de", "97232bd273eceb7207f689527386a97e4be2616b18ada47576bdaf96c8ae1f00"),
                ("test_2016_flickr", "en", "5b7f32627cf99eced828311b955dae9800bb52bc8b91cf8b6526829e605b29d2"),
                ("test_2016_flickr", "de", "c6a33d39d48f9f510de147651316cd9d918e09ad0219df734a2f16b6baccacc4"),
            )
        },
    ),
}


def fetch(dataset: Dataset, out_dir: str, address: str = "") -> list[Path]:
    """Download, unpack and tokenise the files that are missing in `out_dir`; return the paths of all files.

    Raises:
      InputError: an address cannot be read, an archive lacks a member, or a file cannot be written. Or the two sides
        of a text have different numbers of lines.
    """
    directory = make_directory(out_dir)
    downloads = make_directory(directory / "downloads")
    names = list(dict.fromkeys(part.name for part in dataset.parts))
    texts = list(dict.fromkeys(name.rsplit(".", 1)[0] for name in names))
    for text in texts:
        targets = [directory / f"{text}.{language}" for language in dataset.languages]
        if all(target.exists() for target in targets):
            continue
        sides = [
            _lines(dataset, f"{text}.{language}", downloads, address or dataset.address)
            for language in dataset.languages
        ]
        if text == "vocab":
            for target, lines in zip(targets, sides, strict=True):
                _write(target, lines)
        else:
            _write_pairs(targets, sides, dataset, is_training=text == "train")
    return [directory / name for name in names]


def _lines(dataset: Dataset, name: str, downloads: Path, address: str) -> Iterator[str]:
    for part in dataset.parts:
        if part.name == name:
            archive = downloads / part.path.replace("/", "_")
            if not archive.exists():
                _download(f"{address.rstrip('/')}/{part.path}", archive)
            wanted, found = dataset.digests.get(part.path), hashlib.sha256(archive.read_bytes()).hexdigest()
            if wanted and found != wanted:
                raise InputError(
                    f"{archive} is not the published file: its SHA-256 is {found}, not {wanted}. Delete it, and try "
                    "again without --address or with another"
                )
            yield from _read(archive, part.member)


def _download(url: str, path: Path) -> None:
    """Download a file; one that ends early does not count."""
    print(f"{url} -> {path}", flush=True)
    try:
        with urllib.request.urlopen(url, timeout=60) as source, replace_atomically(path, "wb") as target:
            target.writelines(_parts(source, url))
            wanted, size = source.headers["Content-Length"], target.tell()
            if wanted is None and not getattr(source, "chunked", False):  # the end of chunks is marked
                raise InputError(f"{url} has no length, so a part of it would pass for all: save it yourself as {path}")
            if wanted is not None and size != int(wanted):
                raise InputError(
                    f"{url} ended after {size} of {wanted} bytes: try again, or give a mirror by --address"
                )
    except (urllib.error.URLError, TimeoutError, ConnectionError, http.client.HTTPException) as error:
        raise _unreadable(url, error) from error


def _parts(source: Any, url: str) -> Iterator[bytes]:
    try:
        while part := source.read(1 << 20):
            yield part
    except (OSError, http.client.HTTPException) as error:  # else it would be told as one of the file that is written
        raise _unreadable(url, error) from error


def _unreadable(url: str, error: Exception) -> InputError:
    reason = getattr(error, "reason", error)
    return InputError(f"{url} cannot be read ({reason}): try again, or give a mirror by --address")


def _read(archive: Path, member: str) -> Iterator[str]:
    """Yield the lines of a file or of a tar archive's member; for an SGML member, the texts of its segments."""
    if not member:
        with open(archive, "rb") as stored, gzip.open(stored) if archive.name.endswith(".gz") else stored as file:
            yield from (line.decode("utf-8").rstrip("\r\n") for line in file)
        return
    try:
        with tarfile.open(archive) as tar:
            file_in = tar.extractfile(member)
            assert file_in is not None
            for raw in file_in:
                line = raw.decode("utf-8").rstrip("\r\n")
                if not member.endswith(".sgm"):
                    yield line
                elif (segment := re.search(r"<seg[^>]*>(.*)</seg>", line)) is not None:
                    yield html.unescape(segment[1]).strip()
    except (tarfile.TarError, KeyError, EOFError) as error:
        raise InputError(f"{archive} has no {member} ({error}): delete the archive to download it again") from error


def _write(path: Path, lines: Iterable[str]) -> None:
    with replace_atomically(path) as file:
        file.writelines(line + "\n" for line in lines)


def _write_pairs(targets: Sequence[Path], sides: Sequence[Iterator[str]], dataset: Dataset, is_training: bool) -> None:
    """Write the files of both sides atomically; of raw training text, only pairs with 1 to 80 tokens on each side."""
    tokenisers = [tokenizer(x, escape=True) if dataset.raw else str for x in dataset.languages]
    most = _MOST_TOKENS if dataset.raw and is_training else None
    with replace_atomically(targets[0]) as first, replace_atomically(targets[1]) as second:
        try:
            for pair in zip(*sides, strict=True):
                left, right = (cut(line) for cut, line in zip(tokenisers, pair, strict=True))
                if most is None or (
                    0 < left.count(" ") + bool(left) <= most and 0 < right.count(" ") + bool(right) <= most
                ):
                    first.write(left + "\n")
                    second.write(right + "\n")
        except ValueError as error:
            raise InputError(
                f"{targets[0].name} and {targets[1].name} have different numbers of lines: delete the downloads"
            ) from error


@dataclass(frozen=True)
class DatasetOptions:
    """Command-line options of `nmt.datasets`."""

    title: ClassVar[str] = "options"

    dataset: str | None = option(None, "Name of the parallel text.", allowed=DATASETS, required=True)
    out_dir: str | None = option(None, "Directory for the files.", required=True)
    address: str = option("", "URL of a mirror with the same files.")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""

    def command(options: DatasetOptions) -> None:
        dataset = DATASETS[str(options.dataset)]
        for path in fetch(dataset, str(options.out_dir), options.address):
            print(path)
        print("\n" + dataset.commands.format(out=options.out_dir))

    return run(command, DatasetOptions, __doc__ or "", sys.argv if argv is None else argv)


if __name__ == "__main__":
    sys.exit(main())
