from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quantizer.convert.source_model import SourceModel
from quantizer.gguf.tensor_types import file_type_named, tensor_type_named
from quantizer.mix.search import SIZE_TOLERANCE, Mix, MixSearch, Sensitivity, check_reachable, check_unquantized
from quantizer.system.errors import UsageError
from quantizer.write.plan_options import PlanOptions
from quantizer.write.quantize import execute
from quantizer.write.quantize_plan import plan, plan_model
from tests.quantizer.mixes import made_up, small_model

Q8_0 = tensor_type_named("Q8_0")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> SourceModel:
    return small_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def search(model: SourceModel) -> MixSearch:
    return MixSearch(model, PlanOptions(), made_up(model))


def planned_bytes(model: SourceModel, mix: Mix, options: PlanOptions) -> int:
    return plan_model(model, mix.file_type, Path("x.gguf"), replace(options, mix=mix.types)).n_bytes


@pytest.mark.slow
@given(share=st.floats(0, 1))
def test_a_size_is_met_from_below(model: SourceModel, search: MixSearch, share: float) -> None:
    asked = round(search.smallest.n_bytes + share * (search.best.n_bytes - search.smallest.n_bytes))
    mix = search.within_bytes(asked)
    assert asked * (1 - SIZE_TOLERANCE) <= mix.n_bytes <= asked
    assert mix.n_bytes == planned_bytes(model, mix, PlanOptions())


@pytest.mark.parametrize("name", ["Q3_K_M", "Q4_K_M", "Q5_K_M", "IQ4_XS"])
def test_no_plain_type_is_expected_to_do_better_than_the_mix_of_its_size(model: SourceModel, name: str) -> None:
    search = MixSearch(model, PlanOptions(), made_up(model, unmeasured="none"))
    plain = search.plain(file_type_named(name))
    assert plain is not None
    mix = search.within_bytes(plain.n_bytes + len(search.free) * plain.n_bytes // 10_000)  # what rounding takes
    assert mix.kld <= plain.kld * 1.01  # usual types may lose a little more
    assert search.nearest_plain(plain) == plain


@pytest.mark.slow
@settings(max_examples=15)  # each builds two searches
@given(share=st.floats(0, 1), seed=st.integers(0, 20))
def test_usual_types_lose_hardly_more_than_the_best_mix(model: SourceModel, share: float, seed: int) -> None:
    search = MixSearch(model, PlanOptions(), noisy(made_up(model), seed, 1.0))
    asked = round(search.smallest.n_bytes + share * (search.best.n_bytes - search.smallest.n_bytes))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("quantizer.mix.search._TOLL", 0.0)
        best = search.within_bytes(asked)
    assert search.within_bytes(asked).kld <= best.kld * 1.2 + 1e-12


@pytest.mark.slow
def test_noise_in_what_is_measured_changes_fewer_types_where_others_have_to_earn_their_place(
    model: SourceModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def share_of_equal_types() -> float:
        equal = []
        for seed in range(6):
            one, other = (MixSearch(model, PlanOptions(), noisy(made_up(model), n, 0.2)) for n in (seed, seed + 10))
            asked = (one.smallest.n_bytes + one.best.n_bytes) // 3
            first, second = one.within_bytes(asked).types, other.within_bytes(asked).types
            equal.append(sum(first[name] == second[name] for name in first) / len(first))
        return sum(equal) / len(equal)

    settled = share_of_equal_types()
    monkeypatch.setattr("quantizer.mix.search._TOLL", 0.0)
    assert settled > share_of_equal_types()


def noisy(sensitivities: dict[str, Sensitivity], seed: int, spread: float) -> dict[str, Sensitivity]:
    factors = np.exp(np.random.default_rng(seed).normal(0, spread, len(sensitivities)))
    return {
        name: replace(known, kld=known.kld * float(factor))
        for (name, known), factor in zip(sensitivities.items(), factors, strict=True)
    }


def test_tensors_that_matter_more_get_more_bits(search: MixSearch) -> None:
    mix = search.within_loss(search.smallest.kld / 50)
    bits = {name: tensor_type_named(kind).bits_per_weight for name, kind in mix.types.items()}
    assert bits["blk.0.attn_q.weight"] < bits["blk.2.ffn_up.weight"]


def test_tensors_set_by_hand_or_never_measured_have_no_choice(model: SourceModel) -> None:
    options = PlanOptions(tensor_types=(r"blk\.1\.=Q5_0",), output_type="Q8_0")
    search = MixSearch(model, options, made_up(model))
    mix = search.smallest
    assert not any(name.startswith(("blk.1.", "output")) for name in mix.types)
    assert mix.types["blk.3.ffn_up.weight"] == "Q8_0"
    assert mix.n_bytes == planned_bytes(model, mix, options)


def test_headers_of_shards_count(model: SourceModel) -> None:
    options = PlanOptions(max_shard_bytes=300_000)
    search = MixSearch(model, options, made_up(model))
    asked = (search.smallest.n_bytes + search.best.n_bytes) // 2
    mix = search.within_bytes(asked)
    assert asked * (1 - SIZE_TOLERANCE) <= mix.n_bytes <= asked
    assert mix.n_bytes == planned_bytes(model, mix, options)


@pytest.mark.parametrize("end", ["smallest", "best"])
def test_sizes_out_of_reach_are_refused_with_the_range(search: MixSearch, end: str) -> None:
    asked = search.smallest.n_bytes - 1 if end == "smallest" else search.best.n_bytes * 2
    with pytest.raises(UsageError, match=f"{asked:,} bytes.*{search.smallest.n_bytes:,} to {search.best.n_bytes:,}"):
        search.within_bytes(asked)


def test_a_model_whose_types_are_all_set_leaves_nothing_to_search(model: SourceModel) -> None:
    with pytest.raises(UsageError, match="All tensors have a type"):
        MixSearch(model, PlanOptions(tensor_types=(".=Q8_0",)), made_up(model))


def test_a_mix_is_named_after_the_type_of_most_weights(search: MixSearch) -> None:
    assert search.within_bytes(search.best.n_bytes).file_type.name == "F16"
    assert search.smallest.file_type.base_name in search.smallest.types.values()


def test_coarse_sources_are_refused_and_fine_ones_are_not(tmp_path: Path, model: SourceModel) -> None:
    check_unquantized(model)
    for name in ("Q8_0", "Q4_K_M"):
        execute(plan(model.inputs[0], file_type_named(name), tmp_path / name), 1, False, lambda _done: None)
    check_unquantized(replace(model, tensors=opened(tmp_path / "Q8_0").tensors))
    with pytest.raises(UsageError, match="already quantized"):
        check_unquantized(opened(tmp_path / "Q4_K_M"))


def opened(path: Path) -> SourceModel:
    from quantizer.convert.source_model import open_gguf

    return open_gguf(path)


@pytest.mark.slow
def test_an_impossible_size_is_refused_before_anything_is_measured(model: SourceModel, search: MixSearch) -> None:
    for n_bytes in (search.smallest.n_bytes, search.best.n_bytes):
        check_reachable(model, PlanOptions(), n_bytes)
    for n_bytes in (search.smallest.n_bytes // 2, 2 * search.best.n_bytes):
        with pytest.raises(UsageError, match="This model can have"):
            check_reachable(model, PlanOptions(), n_bytes)
