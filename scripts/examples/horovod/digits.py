"""Digits: artificial data for the examples, noisy images of ten patterns; and functions that the examples share."""

import argparse

import numpy as np


def arguments() -> argparse.Namespace:
    """Parse the arguments that all examples have."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=32, help="batch size of one rank")
    parser.add_argument("--lr", type=float, default=0.05, help="learning rate of one rank")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--save", default="", help=".npz file for the weights")
    return parser.parse_args()


def load(number: int = 1536) -> tuple[np.ndarray, np.ndarray]:
    """Return images float32 [number, 8, 8, 1] and labels int64 [number], the same on all ranks."""
    random = np.random.RandomState(0)
    patterns = random.randint(0, 2, [10, 8, 8, 1])
    labels = random.randint(0, 10, number)
    return (patterns[labels] + random.normal(0, 0.7, [number, 8, 8, 1])).astype("float32"), labels


def mine(data: np.ndarray, rank: int, size: int) -> np.ndarray:
    """Return a rank's rows; the ranks' batches together are a batch of one process."""
    return data[rank::size]


def batches(data: tuple[np.ndarray, np.ndarray], batch_size: int, steps: int):
    """Yield ``steps`` batches; at the end of the data, start again."""
    per_epoch = len(data[0]) // batch_size
    for step in range(steps):
        start = step % per_epoch * batch_size
        yield tuple(part[start : start + batch_size] for part in data)
