"""Checkpoints on disk: writes them atomically, lists them, and restores the last one when a run is resumed.

The files are `<directory>/<name>-<step>.{data-*,index}`, and `checkpoint`, which lists the kept checkpoints.

A checkpoint is written in a temporary directory; then its files are renamed, the index last. So a checkpoint with an
index is complete. The format is the one of `tf.compat.v1.train.Saver`; its readers find and use `checkpoint`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import tensorflow as tf

from nmt.core.errors import InputError, reason_of
from nmt.core.files import make_directory, put_in_place, remove_unfinished, replace_atomically

NAME = "translate.ckpt"
_STATE = "checkpoint"
_UNFINISHED = ".saving-"
_BLOCK_BYTES = 1 << 24
_NONE_THERE = (
    f"there is no checkpoint (files such as {NAME}-1200.index) in that directory: correct the path, or train first"
)


def step_of(path: str | os.PathLike[str]) -> int:
    """Return the step in a checkpoint's name, `translate.ckpt-1200` -> 1200; 0 for a name without a step."""
    found = re.search(r"-(\d+)$", os.fspath(path))
    return int(found[1]) if found else 0


class Checkpoints:
    """The checkpoints of one directory; only this process may write there.

    Args:
        directory: path of the directory; made if missing.
        keep: number of checkpoints to keep; older ones are removed when a newer one is complete.
        hparams: contents of the file `hparams`, which is written before each checkpoint; None: it is not written.

    Raises:
        InputError: the directory cannot be made.
    """

    def __init__(self, directory: str | os.PathLike[str], keep: int = 5, hparams: str | None = None) -> None:
        self.directory = make_directory(directory)
        self._keep, self._hparams = keep, hparams
        for unfinished in self.directory.glob(_UNFINISHED + "*"):  # left by a process that was killed
            shutil.rmtree(unfinished, ignore_errors=True)
        remove_unfinished(self.directory)

    def save(self, session: Any, saver: Any, step: int) -> str:
        """Write all variables of the saver's graph and return the checkpoint's path.

        Raises:
            InputError: the disk is full or not writable; earlier checkpoints remain.
        """

        def write(target: Path) -> None:
            with session.graph.as_default():  # without a graph, the saver would assume eager mode
                saver.save(session, os.fspath(target), write_meta_graph=False, write_state=False)

        return self.write(step, write)

    def adopt(self, path: str) -> str:
        """Copy a checkpoint from another directory and return the copy's path. Raises as `save`."""

        def write(target: Path) -> None:
            for source in _files_of(Path(path)):
                shutil.copyfile(source, target.with_name(target.name + _ending(source, path)))

        return self.write(step_of(path), write)

    def write(self, step: int, write: Callable[[Path], None]) -> str:
        """Call `write` with a temporary path to make a checkpoint; return its final path. Raises as `save`."""
        name = f"{NAME}-{step}"
        final = self.directory / name
        unfinished = None
        if self._hparams is not None:
            with replace_atomically(self.directory / "hparams") as file:
                file.write(self._hparams)
        try:
            unfinished = Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=self.directory))
            write(unfinished / name)
            for part in _files_of(unfinished / name):  # the index is last
                put_in_place(part, self.directory / part.name)
        except (OSError, tf.errors.OpError) as error:
            raise InputError(
                f"{final} cannot be written ({reason_of(error)}): free or choose another disk. Earlier checkpoints "
                "are complete, and the same command continues from the last"
            ) from error
        finally:
            if unfinished is not None:
                shutil.rmtree(unfinished, ignore_errors=True)
        kept = [other for other in listed(self.directory) if other != name and step_of(other) < step] + [name]
        self._keep_only(kept[-self._keep :])
        return os.fspath(final)

    def forget_after(self, step: int) -> int | None:
        """Remove the checkpoints of later steps; if none would remain, remove nothing.

        Returns:
            The step of the newest remaining checkpoint; None if nothing was removed for that reason.
        """
        kept = [name for name in listed(self.directory) if step_of(name) <= step]
        if not kept:
            return None
        self._keep_only(kept)
        return step_of(kept[-1])

    def _keep_only(self, names: list[str]) -> None:
        stale = [other for other in listed(self.directory) if other not in names]
        self._list(names)
        for other in stale:
            for part in reversed(_files_of(self.directory / other)):
                part.unlink(missing_ok=True)

    def _list(self, names: list[str]) -> None:
        with replace_atomically(self.directory / _STATE) as file:
            file.write(f"model_checkpoint_path: {json.dumps(names[-1])}\n")
            file.writelines(f"all_model_checkpoint_paths: {json.dumps(name)}\n" for name in names)


def latest(directory: str | os.PathLike[str]) -> str | None:
    """Return the path of a directory's newest checkpoint, or None if there is none.

    Raises:
        InputError: the file `checkpoint` is damaged, or names a missing checkpoint.
    """
    names = listed(Path(directory))
    if not names:
        return None
    path = os.fspath(Path(directory) / names[-1])
    check_exists(path)
    return path


def check_exists(path: str) -> None:
    """Check that a checkpoint exists.

    Raises:
        InputError: the checkpoint has no index file.
    """
    if os.path.isfile(path + ".index"):
        return
    directory = Path(path) if os.path.isdir(path) else Path(path).parent
    there = [os.fspath(directory / name) for name in _complete(directory)]
    if os.path.isdir(path):
        said = f"{path} is a directory"
    elif path.endswith(".index") or ".data-" in os.path.basename(path):
        said = f"{path} is one file of a checkpoint: give the path without the ending"
    elif not directory.is_dir():
        raise InputError(f"{path}: there is no directory {directory}; correct the path")
    else:
        said = f"{path}.index is missing"
        if os.path.basename(path) in _named(directory):  # the file `checkpoint` lists it, so it existed
            raise InputError(f"{said}: {_remedy(path)}")
    raise InputError(f"{said}; existing checkpoints are {', '.join(there)}" if there else f"{said}; {_NONE_THERE}")


def check_model(ckpt: str, out_dir: str) -> None:
    """Check that the checkpoints to translate with exist, or if none are given, the directory of the run.

    Args:
        ckpt: paths, separated by commas; empty for the latest checkpoint of `out_dir`.
        out_dir: directory of a run; may be empty.

    Raises:
        InputError: a checkpoint or the directory does not exist.
    """
    for path in filter(None, map(str.strip, ckpt.split(","))):
        check_exists(path)
    if not ckpt and out_dir and not os.path.isdir(out_dir):
        raise InputError(f"--out_dir={out_dir} does not exist: correct the path, or give --ckpt")


def checksum(path: str) -> str:
    """Return the CRC-32 of a checkpoint's files, in hexadecimal.

    Raises:
        InputError: the checkpoint is missing, or one of its files cannot be read.
    """
    check_exists(path)
    value = 0
    with reading(path):
        for part in _files_of(Path(path)):
            with open(part, "rb") as file:
                while block := file.read(_BLOCK_BYTES):
                    value = zlib.crc32(block, value)
    return f"{value:08x}"


def restore(session: Any, saver: Any, path: str) -> None:
    """Restore the global variables of the session's graph from a checkpoint; `saver` is a Saver of that graph.

    Raises:
        InputError: the checkpoint is missing or damaged, or has another architecture or vocabulary.
    """
    check_exists(path)
    if not _files_of(Path(path))[:-1]:
        raise InputError(f"{path}.data-* is missing: {_remedy(path)}")
    with reading(path):
        shapes = tf.train.load_checkpoint(path).get_variable_to_shape_map()
        _check_shapes(session.graph.get_collection(tf.compat.v1.GraphKeys.GLOBAL_VARIABLES), shapes, path)
        with session.graph.as_default():
            saver.restore(session, path)


def restore_below(session: Any, scope: str, path: str) -> None:
    """Restore the global variables below a scope of the session's graph; their names in the checkpoint lack the scope.

    Raises:
        InputError: as `restore`.
    """
    check_exists(path)
    variables = session.graph.get_collection(tf.compat.v1.GraphKeys.GLOBAL_VARIABLES, f"{scope}/")
    with reading(path):
        reader = tf.train.load_checkpoint(path)
        _check_shapes(variables, reader.get_variable_to_shape_map(), path, f"{scope}/")
        for variable in variables:
            value = reader.get_tensor(variable.op.name.removeprefix(f"{scope}/"))
            session.run(variable.initializer, {variable.initializer.inputs[1]: value})


@contextmanager
def reading(path: str) -> Iterator[None]:
    """Convert errors of reading a checkpoint in the block to an `InputError` with reason and remedy."""
    try:
        yield
    except (OSError, tf.errors.OpError, RuntimeError, ValueError, IndexError) as error:  # IndexError: a truncated file
        raise InputError(f"{path} is damaged ({reason_of(error)}): {_remedy(path)}") from None


def _remedy(path: str) -> str:
    state = os.path.join(os.path.dirname(path), _STATE)
    return f"restore its files, or delete {state} and {path}.* to go back to the newest complete checkpoint"


def _check_shapes(variables: Sequence[Any], shapes: Mapping[str, list[int]], path: str, scope: str = "") -> None:
    """Raise InputError if shapes of variables differ from a checkpoint; TensorFlow would restore them silently."""
    differing = {}
    for variable in variables:
        name, wanted = variable.op.name.removeprefix(scope), variable.shape.as_list()
        if shapes.get(name) != wanted:
            found = f"has {shapes[name]}" if name in shapes else "does not have it"
            differing[name] = f"{name} is {wanted}: the checkpoint {found}"
    if differing:
        first, *others = differing.values()
        rest = f" ({len(others)} others differ, too: {', '.join(list(differing)[1:6])}{', ...' * (len(others) > 5)})"
        raise InputError(
            f"{path} does not fit the model, where {first}{rest if others else ''}; use the flags and vocabularies "
            "of its training"
        )


def listed(directory: Path) -> list[str]:
    """Return the names in the file `checkpoint`, oldest first; without the file, those of complete checkpoints."""
    path = directory / _STATE
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return _complete(directory, f"{NAME}-*")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read ({error}): delete it to use the newest checkpoint") from None
    names = re.findall(r'^all_model_checkpoint_paths: "(.*)"$', text, re.MULTILINE)
    newest = re.search(r'^model_checkpoint_path: "(.*)"$', text, re.MULTILINE)
    if newest is None:
        raise InputError(f"{path} is damaged: delete it to use the newest checkpoint")
    return [os.path.basename(name) for name in names if name != newest[1]] + [os.path.basename(newest[1])]


def _complete(directory: Path, pattern: str = "*") -> list[str]:
    """Return the names of the checkpoints with an index file, oldest first."""
    return sorted((index.name.removesuffix(".index") for index in directory.glob(f"{pattern}.index")), key=step_of)


def _named(directory: Path) -> list[str]:
    with suppress(InputError):
        return listed(directory)
    return []


def _files_of(path: Path) -> list[Path]:
    """Return the files of a checkpoint in the order of writing, the index last."""
    data = sorted(path.parent.glob(f"{path.name}.data-*"))
    return [*data, path.with_name(path.name + ".index")]


def _ending(part: Path, path: str) -> str:
    return part.name[len(os.path.basename(path)) :]
