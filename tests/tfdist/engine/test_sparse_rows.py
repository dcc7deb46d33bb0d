"""Rows of sparse gradients: gathered or made dense, depending on the number of bytes."""

from __future__ import annotations

import pytest

from tfdist.engine import sparse_rows


class TestRows:
    def test_the_published_ratio(self) -> None:
        """Cavdar et al. 2019 (arXiv:1905.04035): 11.4 GB against 139 MB, 82 times, with 64 workers.

        The embedding is shared with the output layer, so TensorFlow 1 made slices of all its rows. A worker added the
        slices of 5,000 source and 5,000 target tokens.
        """
        vocabulary, width, tokens = 33_708, 1024, 10_000
        gathered = sparse_rows.gathered_bytes(64 * (vocabulary + tokens), width)
        assert gathered / sparse_rows.dense_bytes(vocabulary, width) == pytest.approx(82, rel=0.02)
        assert gathered == pytest.approx(11.446e9, rel=0.01)

    def test_auto_follows_the_bytes(self) -> None:
        few = sparse_rows.choose("auto", 100, 32_000, 512, 4, 8)
        many = sparse_rows.choose("auto", 70_000, 32_000, 512, 4, 8)
        assert (few, many) == ("gather", "dense")
        assert sparse_rows.choose("dense", 1, None, 512, 4, 8) == "gather"  # the number of rows is not known
