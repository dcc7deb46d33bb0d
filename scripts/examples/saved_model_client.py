"""Translates standard input with a SavedModel of ``python -m nmt.export``.

    python saved_model_client.py EXPORT_DIR [--tokens] < text.en

The model needs TensorFlow alone. To prepare raw text, this client uses the package ``nmt``. With ``--tokens`` it does
not: lines are prepared text then, and words come back.
"""

import os
import sys

import tensorflow as tf


def main(*arguments: str) -> None:
    """Translate the lines of standard input, 32 at a time."""
    directories = [word for word in arguments if word != "--tokens"]
    if len(directories) != 1:
        sys.exit("usage: python saved_model_client.py EXPORT_DIR [--tokens] < text.en")
    prepare, finish = str, str
    if "--tokens" not in arguments:
        from nmt.text.preparation import read_preparation

        preparation = read_preparation(os.path.join(directories[0], "assets.extra"))
        if preparation is None:
            sys.exit(f"{directories[0]} has no record of how to prepare raw text: give prepared text and --tokens")
        source, target = preparation.recipe.src, preparation.recipe.tgt
        prepare = lambda line: preparation.tokens(line, source)  # noqa: E731
        finish = lambda words: preparation.text(words, target)  # noqa: E731
    try:
        text = sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        sys.exit(f"standard input is not UTF-8 text ({error.reason}): convert it with iconv -t utf-8")
    lines = [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")] if text else []
    translate = tf.saved_model.load(directories[0]).signatures["serving_default"]
    sys.stdout.reconfigure(encoding="utf-8")  # as the input, whatever the environment says
    for start in range(0, len(lines), 32):
        prepared = [prepare(line) for line in lines[start : start + 32]]
        for best, *_ in translate(lines=tf.constant(prepared))["translations"].numpy():
            print(finish(best.decode()))
        print(end="", flush=True)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except BrokenPipeError:  # nobody reads; Python writes the rest once more at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
