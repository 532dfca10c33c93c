from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quantizer.mix.search import KLD_TOLERANCE, Mix, MixSearch, mix_for_kld
from quantizer.system.errors import UsageError
from quantizer.write.plan_options import PlanOptions
from tests.quantizer.mixes import made_up, small_model


@pytest.fixture(scope="module")
def search(tmp_path_factory: pytest.TempPathFactory) -> MixSearch:
    model = small_model(tmp_path_factory.mktemp("model"))
    return MixSearch(model, PlanOptions(), made_up(model))


def real(factor: float, power: float, trials: list[float] | None = None) -> Callable[[Mix], float]:
    """A model that diverges otherwise than expected, though never less where more is expected."""

    def measure(mix: Mix) -> float:
        if trials is not None:
            trials.append(mix.kld)
        return float(factor * mix.kld**power)

    return measure


@pytest.mark.slow
@settings(max_examples=40)
@given(factor=st.floats(0.3, 3), power=st.floats(0.7, 1.3), share=st.floats(0.05, 0.8))
def test_a_divergence_is_met_from_below_whatever_expectations_are_worth(
    search: MixSearch, factor: float, power: float, share: float
) -> None:
    target = factor * (search.smallest.kld * share) ** power
    found = mix_for_kld(search, target, real(factor, power))
    assert target * (1 - KLD_TOLERANCE) <= found.kld <= target


def test_right_expectations_need_one_trial(search: MixSearch) -> None:
    trials: list[float] = []
    mix_for_kld(search, search.smallest.kld / 3, real(1, 1, trials))
    assert len(trials) == 1


def test_more_than_the_smallest_mix_loses_is_refused_with_that(search: MixSearch) -> None:
    with pytest.raises(UsageError, match=f"smallest mix, of {search.smallest.n_bytes:,} bytes"):
        mix_for_kld(search, search.smallest.kld * 5, real(1, 1))


def test_less_than_any_mix_loses_is_refused(search: MixSearch) -> None:
    with pytest.raises(UsageError, match=r"as little as 0\.000000000001"):
        mix_for_kld(search, 1e-12, real(1, 1))
    with pytest.raises(UsageError, match=r"diverges by 0\.5"):
        mix_for_kld(search, 0.01, lambda _mix: 0.5)


def test_where_mixes_are_few_the_nearest_below_is_returned(search: MixSearch) -> None:
    middle = search.smallest.kld / 10
    found = mix_for_kld(search, 0.1, lambda mix: 0.2 if mix.kld > middle else 0.05)
    assert found.kld == 0.05
    assert found.mix.kld <= middle
