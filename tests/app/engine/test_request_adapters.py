from __future__ import annotations

import math

import pytest

from app.engine.request import NO_ADAPTERS, Adapter, adapter_set
from app.protocol.errors import RequestError

KNOWN = (Adapter("style", "k2"), Adapter("facts", "k1"))


def test_without_a_wish_every_adapter_acts_in_full() -> None:
    assert adapter_set(KNOWN, None) == (("k1", 1.0), ("k2", 1.0))
    assert adapter_set((), None) == NO_ADAPTERS


def test_names_and_numbers_mean_the_same_and_order_does_not_matter() -> None:
    by_name = adapter_set(KNOWN, (("style", 0.5), ("facts", 1.0)))
    assert by_name == adapter_set(KNOWN, ((1, 1.0), (0, 0.5))) == (("k1", 1.0), ("k2", 0.5))


def test_a_scale_of_zero_is_absence() -> None:
    assert adapter_set(KNOWN, ((0, 0.0), (1, 0.5))) == adapter_set(KNOWN, ((1, 0.5),))
    assert adapter_set(KNOWN, ((0, -0.0),)) == adapter_set(KNOWN, ()) == NO_ADAPTERS


@pytest.mark.parametrize(
    "wanted", [(("other", 1.0),), ((2, 1.0),), ((-1, 1.0),), ((0, math.nan),), ((0, 1e9),), ((0, 1.0), ("style", 1.0))]
)
def test_what_means_no_adapter_or_no_scale_is_refused(wanted: tuple[tuple[int | str, float], ...]) -> None:
    with pytest.raises(RequestError):
        adapter_set(KNOWN, wanted)


def test_a_refusal_names_what_is_loaded() -> None:
    with pytest.raises(RequestError, match=r"0 \(style\), 1 \(facts\)"):
        adapter_set(KNOWN, ((7, 1.0),))
    with pytest.raises(RequestError, match="--lora"):
        adapter_set((), ((0, 1.0),))
