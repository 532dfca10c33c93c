from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quantizer.convert.source_model import SourceModel
from quantizer.gguf.tensor_types import WEIGHT_TYPES, file_type_named
from quantizer.mix.search import MixSearch
from quantizer.mix.speed import MixSpeeds, TypeSeconds
from quantizer.system.errors import UsageError
from quantizer.write.plan_options import PlanOptions
from tests.quantizer.mixes import made_up, small_model

SLOW_READERS = ("Q4_1", "Q5_0", "Q5_1")


def seconds(name: str) -> TypeSeconds:
    """A token reads each bit, and a prompt takes as long for any type but some."""
    bits = WEIGHT_TYPES[name].bits_per_weight
    return TypeSeconds(bits * 1e-9, 1e-9, 5e-8 if name in SLOW_READERS else 1e-9, 0.0)


SPEEDS = MixSpeeds({name: seconds(name) for name in WEIGHT_TYPES}, fixed_s=1e-4, prompt_fixed_s=1e-5)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> SourceModel:
    return small_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def search(model: SourceModel) -> MixSearch:
    return MixSearch(model, PlanOptions(), made_up(model, unmeasured="none"), SPEEDS)


@pytest.mark.slow
@settings(max_examples=25)  # a search takes 50 ms
@given(share=st.floats(0.02, 0.98))
def test_a_speed_is_met_and_little_of_it_is_given_away(search: MixSearch, share: float) -> None:
    slowest_s, fastest_s = search.best.answer_s, search.smallest.answer_s
    asked = 1 / (fastest_s + share * (slowest_s - fastest_s))
    mix = search.within_speed(asked)
    assert 1 / mix.answer_s >= asked
    assert mix.kld <= search.smallest.kld
    read_often = {kind for name, kind in mix.types.items() if name.startswith("blk")}
    assert not read_often & set(SLOW_READERS), "others read as well and lose hardly more"


@pytest.mark.slow
@settings(max_examples=25)
@given(st.floats(0.1, 0.9), st.floats(0.1, 0.9))
def test_a_slower_mix_never_loses_more(search: MixSearch, one: float, other: float) -> None:
    span = search.best.answer_s - search.smallest.answer_s
    slow, fast = (
        search.within_speed(1 / (search.smallest.answer_s + each * span)) for each in (max(one, other), min(one, other))
    )
    assert slow.kld <= fast.kld * 1.001


def test_a_speed_that_any_mix_has_gives_the_best_one(search: MixSearch) -> None:
    assert search.within_speed(0.5 / search.best.answer_s).kld == pytest.approx(search.best.kld)


def test_a_speed_beyond_all_mixes_is_refused_with_the_fastest(search: MixSearch) -> None:
    with pytest.raises(UsageError, match="No mix writes") as refused:
        search.within_speed(2 / search.smallest.answer_s)
    assert "writes 142" in refused.value.remedy


@pytest.mark.slow
def test_of_mixes_of_one_size_one_that_reads_slowly_has_to_earn_it(model: SourceModel) -> None:
    known = made_up(model, unmeasured="none")
    n_bytes = MixSearch(model, PlanOptions(), known).plain(file_type_named("Q4_1")).n_bytes
    plain, weighed = (MixSearch(model, PlanOptions(), known, speeds).within_bytes(n_bytes) for speeds in (None, SPEEDS))
    n_slow = [sum(kind in SLOW_READERS for kind in mix.types.values()) for mix in (plain, weighed)]
    assert n_slow[1] <= n_slow[0]
    assert weighed.kld <= 1.5 * plain.kld
    assert weighed.n_bytes <= n_bytes


def test_the_embedding_takes_time_where_it_is_the_output_too() -> None:
    shape = (64, 1000)
    assert SPEEDS.answer_s("token_embd.weight", "Q8_0", shape, is_tied=False) == 0
    tied_s = SPEEDS.answer_s("token_embd.weight", "Q8_0", shape, is_tied=True)
    assert tied_s == SPEEDS.answer_s("output.weight", "Q8_0", shape, is_tied=False) > 0
    assert SPEEDS.prompt_s("output.weight", "Q8_0", shape) == 0


def test_only_the_experts_that_a_token_uses_take_time() -> None:
    sparse = MixSpeeds(SPEEDS.types, 0.0, 0.0, expert_share=0.25)
    one, other = (
        sparse.answer_s(f"blk.0.ffn_up{end}.weight", "Q8_0", (64, 8, 4), is_tied=False) for end in ("_exps", "")
    )
    assert one == pytest.approx(other / 4)
