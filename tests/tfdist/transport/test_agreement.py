"""Agreement: ranks compare their plans before they send data."""

from __future__ import annotations

import pytest

from tests.tfdist.transport.thread_ranks import on_ranks
from tfdist.transport import agreement
from tfdist.transport.errors import DisagreementError


class TestPlans:
    def test_equal_plans_pass(self) -> None:
        assert on_ranks(3, lambda channel: agreement.agree(channel, ["a", "b"], "here")) == [None] * 3

    @pytest.mark.parametrize(
        ("plans", "said"),
        [
            ([["w [3]", "b"], ["w [3]", "c"], ["w [3]", "b"]], "at exchange 1: rank 0, 2: b; rank 1: c"),
            ([["w [3]"], ["w [4]"]], "rank 0: w [3]; rank 1: w [4]"),
            ([["w", "b"], ["w"]], "rank 0: b; rank 1: nothing more"),
            ([["w"], ["w", "b"], ["w"]], "at exchange 1: rank 0, 2: nothing more; rank 1: b"),
            ([["a", "b"], ["a", "c"], ["d", "b"]], "at exchange 0: rank 0, 1: a; rank 2: d"),
            ([["a"], *[["b"]] * 12], "rank 1, 2, 3, 4, 5, 6, 7, 8 and 4 more: b"),
        ],
    )
    def test_the_first_difference_is_named_on_all_ranks(self, plans: list[list[str]], said: str) -> None:
        errors = on_ranks(len(plans), lambda channel: agreement.agree(channel, plans[channel.rank], "here"))
        assert all(isinstance(error, DisagreementError) and said in str(error) for error in errors), errors

    def test_digests_differ_as_plans_do(self) -> None:
        assert agreement.digest(["a", "b"]) == agreement.digest(["a", "b"])
        assert agreement.digest(["a", "b"]) != agreement.digest(["b", "a"])


class TestNames:
    def order(self, *ranks: list[str]) -> list[list[int] | Exception]:
        return on_ranks(len(ranks), lambda channel: agreement.order(channel, ranks[channel.rank], "here"))

    def test_the_same_names_come_into_rank_0s_order(self) -> None:
        assert self.order(["a", "b", "c"], ["c", "a", "b"], ["a", "b", "c"]) == [[0, 1, 2], [1, 2, 0], [0, 1, 2]]
        assert self.order(["a", "b", "a"], ["b", "a", "a"]) == [[0, 1, 2], [1, 0, 2]]

    def test_other_names_stay_as_they_are(self) -> None:
        assert self.order(["a", "b"], ["b", "c"], ["b", "a"]) == [[0, 1]] * 3

    def test_another_order_is_refused(self) -> None:
        ranks = [["a", "b"], ["a", "b"], ["b", "a"]]
        errors = on_ranks(3, lambda channel: agreement.check_order(channel, ranks[channel.rank], "here"))
        said = "where rank 0 has a, rank 2 has b"
        assert all(isinstance(error, DisagreementError) and said in str(error) for error in errors), errors

    def test_another_order_of_other_names_passes(self) -> None:
        ranks = [["a", "b"], ["b", "c"]]
        assert on_ranks(2, lambda channel: agreement.check_order(channel, ranks[channel.rank], "here")) == [None] * 2


class TestPairs:
    def paired(self, *ranks: list[str]) -> list[list[int] | Exception]:
        """Pair full names; the short names are without digits at the end."""
        names = [[(full, full.rstrip("0123456789")) for full in rank] for rank in ranks]
        return on_ranks(len(ranks), lambda channel: agreement.paired(channel, names[channel.rank], "here"))

    def test_full_names_come_first(self) -> None:
        assert self.paired(["w1", "w2"], ["w2", "w1"]) == [[0, 1], [1, 0]]

    def test_what_all_have_equally_often_is_paired_in_its_order(self) -> None:
        assert self.paired(["w1", "v1", "w2"], ["own1", "w3", "w4", "v2"], ["w1", "w2", "v1"]) == [
            [0, 1, 2],
            [1, 3, 2],
            [0, 2, 1],
        ]

    def test_what_a_rank_has_more_often_is_nobodys(self) -> None:
        assert self.paired(["w1", "v1"], ["w1", "w2", "v1"], ["w1", "v1"]) == [[1], [2], [1]]
