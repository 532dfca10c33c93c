"""The products are ggml's own, on the processor. No test asserts how fast they are."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import closing
from ctypes import c_int, c_void_p

import pytest

from app.engine.llama import type_speeds
from app.engine.llama.native import ggml_function
from app.engine.llama.type_speeds import _N_COLUMNS, TypeBench
from app.engine.load.self_test import run_self_test
from app.settings.settings import load_settings
from offload.speed.type_costs import N_STEP, TypeCost, TypeWork, is_repacked, type_of
from quantizer.gguf.tensor_types import WEIGHT_TYPES

MEASURED = ("F16", "Q4_0", "Q4_K", "Q8_0", "IQ2_XS")  # plain, repacked here and there, and one that needs a matrix


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type_speeds, "UNCACHED_BYTES", 4 << 20)
    monkeypatch.setattr(type_speeds, "_MATRIX_WEIGHTS", 1 << 18)


@pytest.fixture
def bench() -> Iterator[TypeBench]:
    with closing(TypeBench(1, repacks=run_self_test(load_settings().cache_dir).is_safe)) as bench:
        yield bench


@pytest.mark.slow
def test_each_type_and_path_takes_some_time_for_each_weight(bench: TypeBench) -> None:
    found = {kind: measure() for kind, measure in bench.kinds() if type_of(kind) in MEASURED}
    assert all(found[name] is not None for name in MEASURED)
    for cost in filter(None, found.values()):
        for part in (cost.one, cost.cached, cost.few, cost.many):
            assert part.weight_s > 0
            assert part.row_s >= 0
            assert part.of(TypeWork(2e6, 2e3)) > part.of(TypeWork(1e6, 1e3))
    assert not any(found[kind] for kind in found if is_repacked(kind) and type_of(kind) == "F16")


def test_steps_with_drafts_are_measured_by_their_size(bench: TypeBench) -> None:
    measure = next(measure for kind, measure in bench.kinds() if kind == "Q8_0")
    cost, work = measure(), TypeWork(2e6, 2e3)
    assert cost is not None
    assert len(cost.steps) == len(N_STEP)
    seconds = [cost.step_s(n_tokens, work, 1e6) for n_tokens in (1, 16, 512)]
    assert seconds == sorted(seconds)


@pytest.mark.parametrize(("kind", "n_measured"), [("Q6_K", 4), ("Q8_0", 2)])
def test_a_step_of_eight_counts_without_tiled_kernels_where_it_is_faster_so(
    bench: TypeBench, monkeypatch: pytest.MonkeyPatch, kind: str, n_measured: int
) -> None:
    asked = []

    def products(
        _self: TypeBench, _case: object, _n_bytes: int, columns: tuple[int, ...] = _N_COLUMNS, *, is_tiled: bool = True
    ) -> tuple[float, ...]:
        asked.append(is_tiled)
        return (1.0, 1.0, *(2.0 if is_tiled else 0.5 for _ in columns))

    monkeypatch.setattr(TypeBench, "_products", products)
    cost = next(measure for name, measure in bench.kinds() if name == kind)()
    assert len(asked) == n_measured
    by_step = dict(zip(N_STEP, (each.of(TypeWork(1e6, 1e3)) for each in cost.steps), strict=True))
    assert (by_step[8] < by_step[4]) is (n_measured == 4)


def test_what_prompts_take_is_measured_alone_in_a_moment(bench: TypeBench) -> None:
    cost = bench.quick_cost("Q4_1")
    assert cost is not None
    assert min(cost.few.weight_s, cost.many.weight_s) > 0
    assert cost.steps == ()
    assert bench.quick_cost("F16 repacked") is None


def test_a_build_that_must_not_repack_is_measured_as_the_file_has_it() -> None:
    with closing(TypeBench(1, repacks=False)) as bench:
        kinds = [kind for kind, _ in bench.kinds()]
    assert sorted(kinds) == sorted(WEIGHT_TYPES)


@pytest.mark.slow
def test_attention_and_the_steps_of_a_layer_take_some_time(bench: TypeBench) -> None:
    cost = bench.graph_cost()
    for attention in (cost.attention, cost.fused_attention):
        assert attention.of(TypeWork(2 * 64 * 1000, 1000)) > 0
    assert min(cost.prompt_attention_s, cost.fused_prompt_attention_s, cost.element_s, cost.layer_s) > 0


def test_long_rows_and_short_ones_tell_weights_from_rows() -> None:
    ticks = itertools.count(step=0.05)  # each pass takes as long, so short rows take more for each weight
    with closing(TypeBench(1, repacks=False, clock=lambda: next(ticks))) as bench:
        measure = dict(bench.kinds())["Q4_0"]
        cost = measure()
    assert isinstance(cost, TypeCost)
    weights = 2048 * (2**18 // 2048)
    assert cost.many.of(TypeWork(weights, weights / 2048)) == pytest.approx(0.05 / 512)
    short_rows = 2**18 // 576 // 8 * 8
    assert cost.many.of(TypeWork(576 * short_rows, short_rows)) == pytest.approx(0.05 / 512)


def test_a_device_beside_the_processor_is_measured_as_the_file_has_its_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """The processor by its address, as a GPU is given."""
    monkeypatch.setattr(type_speeds, "_GPU_BYTES", 4 << 20)
    address = ggml_function("ggml_backend_dev_by_type", c_void_p, c_int)(0)
    with closing(TypeBench(0, repacks=True, device=address)) as bench:
        kinds = dict(bench.kinds())
        cost = kinds["Q4_0"]()
    assert not any(map(is_repacked, kinds))
    assert cost is not None
    assert cost.many.weight_s > 0


def test_where_tiled_kernels_pay_is_one_of_a_few_sizes_of_steps(bench: TypeBench) -> None:
    assert bench.tiled_from("Q6_K") in (8, 10, 12, 14, 16)
    assert bench.tiled_from("Q8_0") in (8, 10, 12, 14, 16)
