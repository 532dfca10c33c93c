from __future__ import annotations

from dataclasses import replace

import pytest

from offload.footprint.model import PlannedModel, RunConfig
from offload.speed.step_costs import step_ratios
from offload.speed.type_costs import DEFAULT_LAYOUT, N_STEP, GraphCost, ProductCost, TypeCost, TypeTable, WeightLayout
from quantizer.gguf.tensor_types import file_type_named
from tests.offload.model_outlines import header_of

SIZES = (1, 2, 8, 15, 16, 23, 32, 64)
NOTHING = ProductCost(0.0, 0.0)
GRAPH = GraphCost(NOTHING, NOTHING, 0.0, 0.0, 0.0, 0.0)  # only products count


def each_alone(weight_s: float) -> TypeCost:
    one = ProductCost(weight_s, 0.0)
    return TypeCost(one, one, one, one, steps=(one,) * len(N_STEP))


def sixteen_at_once(weight_s: float) -> TypeCost:
    one, many = ProductCost(weight_s, 0.0), ProductCost(weight_s / 8, 0.0)
    return TypeCost(one, one, many, many, steps=tuple(many if n % 16 == 0 else one for n in N_STEP))


TABLE = TypeTable(
    {"Q8_0": each_alone(1e-10), "BF16": sixteen_at_once(2e-10), "F32": each_alone(4e-10)},
    GRAPH,
)
MODEL = PlannedModel(header := header_of("llama-3.1-8b"), header.tensors).quantized(file_type_named("Q8_0"))


def ratios(
    table: TypeTable = TABLE, layout: WeightLayout = DEFAULT_LAYOUT, *, model: PlannedModel = MODEL, fused: bool = False
) -> dict[int, float]:
    return step_ratios(model.profile(RunConfig(layout=layout, is_fused=fused)), table, SIZES)


def test_a_step_of_a_type_whose_kernel_takes_a_token_after_the_other_costs_a_step_for_each() -> None:
    found = ratios()
    assert found[1] == 1.0
    assert found[32] == pytest.approx(32, rel=0.05)


def test_a_step_of_fifteen_may_cost_more_than_one_of_sixteen() -> None:
    found = ratios(replace(TABLE, types={**TABLE.types, "Q8_0": sixteen_at_once(1e-10)}))
    assert found[16] == pytest.approx(2, rel=0.1)
    assert found[15] > 5 * found[16]


def test_steps_that_use_copies_cost_what_those_do_but_the_output_has_none() -> None:
    own, with_copies = ratios(), ratios(layout=WeightLayout(copies=(("Q8_0", "BF16"),), copy_from=24))
    assert with_copies[23] == own[23]
    # Twice the seconds of a weight, an eighth as often; the output, a fifteenth of all, is not copied.
    assert with_copies[32] == pytest.approx(32 * (0.93 / 4 + 0.07), rel=0.1)


def test_what_is_not_measured_has_no_expectation() -> None:
    assert ratios(TypeTable(TABLE.types)) == {}
    assert ratios(TypeTable({"F32": TABLE.types["F32"]}, GRAPH)) == {}
    assert ratios(layout=WeightLayout(copies=(("Q8_0", "F16"),), copy_from=24)) == {}


def test_experts_have_no_expectation_for_the_text_decides_how_many_several_tokens_need() -> None:
    header = header_of("qwen3-30b-a3b")
    model = PlannedModel(header, header.tensors).quantized(file_type_named("Q8_0"))
    assert ratios(model=model) == {}


def test_a_table_of_an_earlier_version_has_straight_lines_between_its_columns() -> None:
    cost = replace(sixteen_at_once(1e-10), steps=())
    found = ratios(replace(TABLE, types={**TABLE.types, "Q8_0": cost}))
    assert found[64] == pytest.approx(8, rel=0.05)
    assert 1 < found[2] < found[8] < found[16] < found[32] < 8


def test_attention_that_is_fused_takes_a_token_after_the_other() -> None:
    one = ProductCost(1e-6, 0.0)
    graph = replace(GRAPH, attention=one, fused_attention=one, prompt_attention_s=1e-12)
    table = replace(TABLE, graph=graph)
    assert ratios(table, fused=True)[32] == pytest.approx(32, rel=0.05)
    assert ratios(table)[32] < 3


def test_weights_from_memory_are_waited_for_once_a_step() -> None:
    cached = each_alone(1e-10)
    cost = replace(cached, one=ProductCost(3e-10, 0.0))
    found = ratios(replace(TABLE, types={**TABLE.types, "Q8_0": cost}))
    assert found[2] == pytest.approx((3 + 1) / 3, rel=0.05)
