"""Translates standard input with a SavedModel of ``python -m nmt.export``.

    python saved_model_client.py EXPORT_DIR < text.en

The model needs TensorFlow alone. To prepare raw text, this client uses the package ``nmt``. With ``--tokens`` it does
not: lines are prepared text then, and words come back.
"""

import os
import sys

import tensorflow as tf


def main(directory: str, *flags: str) -> None:
    """Translate the lines of standard input, 32 at a time."""
    translate = tf.saved_model.load(directory).signatures["serving_default"]
    prepare, finish = str, str
    if "--tokens" not in flags:
        from nmt.text.preparation import read_preparation

        preparation = read_preparation(os.path.join(directory, "assets.extra"))
        source, target = preparation.recipe.src, preparation.recipe.tgt
        prepare = lambda line: preparation.tokens(line, source)  # noqa: E731
        finish = lambda words: preparation.text(words, target)  # noqa: E731
    lines = sys.stdin.read().splitlines()
    for start in range(0, len(lines), 32):
        prepared = [prepare(line) for line in lines[start : start + 32]]
        for best, *_ in translate(lines=tf.constant(prepared))["translations"].numpy():
            print(finish(best.decode()))


if __name__ == "__main__":
    main(*sys.argv[1:])
