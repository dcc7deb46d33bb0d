"""The scaling model of the figures: against calculations by hand, and against steps that it was not fitted on."""

from __future__ import annotations

import sys

import pytest

from tests.launch import ROOT

sys.path.insert(0, str(ROOT / "scripts/studies"))

from scaling_model import ARTICLE, ARTICLE_BYTES, ARTICLE_FITTED, ARTICLE_MS, Cluster, fitted, ring_bytes  # noqa: E402


def test_the_ring() -> None:
    plain = Cluster(2, 100.0, 10.0, latency=0.0, staging=0.02)
    assert [ring_bytes(60.0, n) for n in (1, 2, 3, 4)] == [0.0, 60.0, 80.0, 90.0]
    assert plain.all_reduce(60.0, 1) == 0
    assert plain.all_reduce(60.0, 2) == pytest.approx(60 * (0.02 + 0.01))
    assert plain.all_reduce(60.0, 4) == pytest.approx(90 * (0.02 + 0.1))
    # Two rounds of log2(4) messages, at half the rate.
    slow = Cluster(2, 100.0, 10.0, latency=0.5, efficiency=0.5)
    assert slow.all_reduce(60.0, 4) == pytest.approx(90 / 5 + 2 * 2 * 0.5)
    assert slow.all_gather(60.0, 3) == pytest.approx(2 * 60 / 5 + 2 * 0.5)


def test_the_fit_goes_through_its_steps_and_predicts_the_article() -> None:
    cluster = fitted(ARTICLE, ARTICLE_BYTES, {n: ARTICLE_MS[n] / 1e3 for n in ARTICLE_FITTED})
    for n, published in ARTICLE_MS.items():
        predicted = ARTICLE_MS[1] + 1e3 * cluster.all_reduce(ARTICLE_BYTES, n)
        assert predicted == pytest.approx(published, rel=1e-9 if n in ARTICLE_FITTED else 0.15), n
