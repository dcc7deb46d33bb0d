"""Plans of ranks are compared before anything is sent."""

from __future__ import annotations

import pytest

from tfdist.transport import agreement
from tfdist.transport.interfaces import DisagreementError


class TestAgreement:
    def test_equal_plans_pass(self) -> None:
        agreement.check([["a", "b"], ["a", "b"]])

    @pytest.mark.parametrize(
        ("plans", "said"),
        [
            ([["w [3]", "b"], ["w [3]", "c"], ["w [3]", "b"]], "at exchange 1: rank 0, 2: b; rank 1: c"),
            ([["w [3]"], ["w [4]"]], "rank 0: w [3]; rank 1: w [4]"),
            ([["w", "b"], ["w"]], "rank 0: b; rank 1: nothing more"),
        ],
    )
    def test_first_difference_is_named(self, plans: list[list[str]], said: str) -> None:
        with pytest.raises(DisagreementError) as caught:
            agreement.check(plans)
        assert said in str(caught.value)

    def test_digests_differ_as_plans_do(self) -> None:
        assert agreement.digest(["a", "b"]) == agreement.digest(["a", "b"])
        assert agreement.digest(["a", "b"]) != agreement.digest(["b", "a"])
