"""Digits made up for the examples: noisy pictures of ten patterns; and what the examples have in common."""

import argparse

import numpy as np


def arguments() -> argparse.Namespace:
    """Of all examples: what is trained, and where its weights are saved."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=32, help="of one rank")
    parser.add_argument("--lr", type=float, default=0.05, help="of one rank; times their number")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--save", default="", help="a .npz file for the weights")
    return parser.parse_args()


def load(number: int = 1536) -> tuple[np.ndarray, np.ndarray]:
    """Pictures float32 [number, 8, 8, 1] and labels int64 [number], the same on all ranks."""
    random = np.random.RandomState(0)
    patterns = random.randint(0, 2, [10, 8, 8, 1])
    labels = random.randint(0, 10, number)
    return (patterns[labels] + random.normal(0, 0.7, [number, 8, 8, 1])).astype("float32"), labels


def mine(data: np.ndarray, rank: int, size: int) -> np.ndarray:
    """A rank's rows: those of all ranks' batches together are a batch of one process."""
    return data[rank::size]


def batches(data: tuple[np.ndarray, np.ndarray], batch_size: int, steps: int):
    """So many batches, from the beginning again where the data end."""
    per_epoch = len(data[0]) // batch_size
    for step in range(steps):
        start = step % per_epoch * batch_size
        yield tuple(part[start : start + batch_size] for part in data)
