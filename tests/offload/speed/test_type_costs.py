from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offload.devices.machine import HOST_NAME, Device, DeviceKind, Machine
from offload.footprint.model import PlannedModel, RunConfig
from offload.placement.assessment import Assessment, FitLevel
from offload.placement.shares import ALL_ON_HOST, allocate, decode_work, prefill_work
from offload.plan import best_assessment
from offload.speed.cost_model import REACHED_IN_MODELS, Work, decode_s, expected_rates, prefill_s
from offload.speed.rate_fitting import Run, fit_rates
from offload.speed.type_costs import (
    CACHED_BYTES,
    N_FEW,
    N_MANY,
    UNCACHED_BYTES,
    GraphCost,
    ProductCost,
    TypeCost,
    TypeTable,
    TypeWork,
    WeightLayout,
    bytes_of,
    copy_bytes,
    faster_copies,
    in_layout,
    is_copied,
    kind_of,
    summed,
    types_worth_repacking,
    weights_by_kind,
    without,
)
from quantizer.gguf.header import TensorInfo
from quantizer.gguf.tensor_types import FILE_TYPES, WEIGHT_TYPES, tensor_type_named
from tests.offload.model_outlines import header_of


def cost(one_ns: float, many_ns: float, *, row_ns: float = 0.0) -> TypeCost:
    one, many = ProductCost(one_ns * 1e-9, row_ns * 1e-9), ProductCost(many_ns * 1e-9, 0.0)
    return TypeCost(one, replace(one, weight_s=one.weight_s / 2), replace(many, weight_s=many.weight_s * 1.5), many)


# As measured on 2 AVX-512 cores, a thread alone.
TABLE = TypeTable(
    {
        "Q4_1": cost(0.08, 0.049),
        "Q4_0": cost(0.059, 0.022),
        "Q4_0 repacked": cost(0.032, 0.015),
        "Q4_K": cost(0.044, 0.0097),
        "Q4_K repacked": cost(0.034, 0.0144),
        "Q5_K": cost(0.05, 0.0097, row_ns=3.4),
        "Q6_K": cost(0.048, 0.0117),
        "F32": cost(0.24, 0.027),
    },
    GraphCost(ProductCost(1e-10, 5e-9), ProductCost(2e-10, 1e-9), 8e-12, 7e-12, 7e-13, 9e-6),
)
HOST = Device(name=HOST_NAME, kind=DeviceKind.CPU, total_bytes=1 << 40, free_bytes=1 << 40, bytes_per_s=20e9, n_cores=2)
MACHINE = Machine(HOST)
RATES = expected_rates(MACHINE, {HOST_NAME: TABLE})
LAYOUT = WeightLayout(plain_from=24, dual_types=("Q4_K",))


def tensor(type_name: str, n_columns: int = 2048, n_rows: int = 2048) -> TensorInfo:
    kind = tensor_type_named(type_name)
    n_bytes = kind.tensor_bytes((n_columns, n_rows))
    return TensorInfo("blk.0.ffn_up.weight", (n_columns, n_rows), kind.type_id, 0, n_bytes)


@pytest.mark.parametrize(
    ("layout", "possible", "n_tokens", "used"),
    [
        (LAYOUT, "Q4_K repacked", 1, "Q4_K repacked"),
        (LAYOUT, "Q4_K repacked", 24, "Q4_K"),
        (LAYOUT, "Q4_0 repacked", 512, "Q4_0 repacked"),
        (LAYOUT, "Q4_0", 1, "Q4_0"),  # rows that cannot be interleaved
        (WeightLayout(is_repacked=False), "Q4_0 repacked", 1, "Q4_0"),
        (WeightLayout(repacked_types=("Q4_K",)), "Q4_0 repacked", 1, "Q4_0"),
        (WeightLayout(repacked_types=("Q4_K",)), "Q4_K repacked", 1, "Q4_K repacked"),
        (WeightLayout(copies=(("Q4_1", "BF16"),), copy_from=24), "Q4_1 repacked", 24, "BF16"),
        (WeightLayout(copies=(("Q4_1", "BF16"),), copy_from=24), "Q4_1 repacked", 23, "Q4_1 repacked"),
        (WeightLayout(copies=(("Q4_1", "BF16"),), copy_from=24), "Q5_1", 24, "Q5_1"),
    ],
)
def test_a_layout_and_a_step_decide_the_path_of_a_type(
    layout: WeightLayout, possible: str, n_tokens: int, used: str
) -> None:
    assert layout.kind(possible, n_tokens) == used


@pytest.mark.parametrize(
    ("shape", "kind"),
    [
        ((2048, 2048), "Q4_0 repacked"),
        ((2048, 2049), "Q4_0"),
        ((576, 1536), "Q4_0 repacked"),
        ((2048, 8, 32), "Q4_0 repacked"),
    ],
)
def test_weights_can_be_repacked_where_their_rows_come_in_eights(shape: tuple[int, ...], kind: str) -> None:
    type_ = tensor_type_named("Q4_0")
    info = TensorInfo("blk.0.ffn_up.weight", shape, type_.type_id, 0, type_.tensor_bytes(shape))
    assert list(weights_by_kind([(info, 1.0)])) == [kind]


def test_norms_are_no_weights_of_a_product() -> None:
    norm = TensorInfo("blk.0.attn_norm.weight", (2048,), tensor_type_named("F32").type_id, 0, 4 * 2048)
    assert weights_by_kind([(norm, 1.0)]) == {}


def test_weights_of_an_unknown_type_count_as_the_usual_one_of_their_size() -> None:
    resized = replace(tensor("Q8_0"), n_bytes=tensor("Q4_K").n_bytes)
    assert list(weights_by_kind([(resized, 1.0)])) == ["Q4_K repacked"]


kinds = st.builds(kind_of, st.sampled_from(sorted(WEIGHT_TYPES)), is_repacked=st.booleans())
works = st.builds(TypeWork, st.floats(1e3, 1e12), st.floats(1.0, 1e6))
weights = st.dictionaries(kinds, works, max_size=6)


@given(weights, weights)
def test_a_mix_takes_the_sum_of_what_its_types_take(one: dict[str, TypeWork], other: dict[str, TypeWork]) -> None:
    model_bytes = bytes_of(one) + bytes_of(other)
    parts_s = [sum(RATES.weights_s(HOST_NAME, part, model_bytes).values()) for part in (one, other)]
    assert sum(RATES.weights_s(HOST_NAME, summed(one, other)).values()) == pytest.approx(sum(parts_s))


@given(weights, kinds, works)
def test_more_weights_never_take_less_time(known: dict[str, TypeWork], kind: str, more: TypeWork) -> None:
    def token_s(part: dict[str, TypeWork]) -> tuple[float, float]:
        operations = {each: 2 * work.n_weights for each, work in part.items()}
        work = Work(
            read_bytes={HOST_NAME: bytes_of(part)},
            operations={HOST_NAME: sum(operations.values())},
            host_operations=operations,
            weights={HOST_NAME: part},
        )
        return decode_s(work, RATES), prefill_s(work, RATES, HOST_NAME, 512)

    fewer, whole = token_s(known), token_s(summed(known, {kind: more}))
    assert all(after >= before for before, after in zip(fewer, whole, strict=True))


@given(weights, st.sampled_from((1, 24, 512)))
def test_no_layout_loses_weights(known: dict[str, TypeWork], n_tokens: int) -> None:
    for layout in (LAYOUT, WeightLayout(), WeightLayout(is_repacked=False)):
        used = in_layout(known, layout, n_tokens)
        assert bytes_of(used) == pytest.approx(bytes_of(known))


@given(weights, weights)
def test_what_is_taken_away_and_added_again_is_the_whole(one: dict[str, TypeWork], other: dict[str, TypeWork]) -> None:
    rest = without(summed(one, other), other)
    assert bytes_of(rest) == pytest.approx(bytes_of(one), rel=1e-6, abs=1e-2 * (1 + bytes_of(other)))


@given(kinds)
def test_a_type_that_was_not_measured_costs_what_is_expected_of_it(kind: str) -> None:
    work = {kind: TypeWork(1e9, 1e6)}
    (expected_s,) = expected_rates(MACHINE).weights_s(HOST_NAME, work).values()
    (seconds,) = RATES.weights_s(HOST_NAME, work).values()
    known = TABLE.cost(kind)
    assert seconds == pytest.approx(known.one.of(work[kind]) / REACHED_IN_MODELS if known else expected_s)


def test_weights_that_stay_in_the_caches_are_read_faster_and_in_between_in_between() -> None:
    small, middle, large = (cost(0.1, 0.02).answer(n).weight_s for n in (CACHED_BYTES, 16 << 20, UNCACHED_BYTES))
    assert small == pytest.approx(0.05e-9)
    assert small < middle < large == pytest.approx(0.1e-9)


def test_a_prompt_of_few_tokens_costs_what_few_columns_do() -> None:
    few, some, many = (cost(0.1, 0.02).prompt(n).weight_s for n in (N_FEW, 200, N_MANY))
    assert few > some > many == pytest.approx(0.02e-9)


def planned(file_type: str) -> PlannedModel:
    header = header_of("qwen3-0.6b")
    return PlannedModel(header, tuple(header.tensors)).quantized(FILE_TYPES[file_type])


def works_of(file_type: str) -> tuple[Work, Work]:
    """Return the work of a token of an answer and of a prompt."""
    profile = planned(file_type).profile(RunConfig(n_ctx=2048, n_cells=2048, is_fused=False, layout=LAYOUT))
    shares = allocate(profile, MACHINE, ALL_ON_HOST)
    return decode_work(shares, ALL_ON_HOST), prefill_work(profile, shares, ALL_ON_HOST)


def test_only_an_answer_has_the_output_and_a_prompt_uses_the_path_of_many_tokens() -> None:
    answer, prompt = (each.weights[HOST_NAME] for each in works_of("Q4_K_S"))
    assert "Q4_K repacked" in answer
    assert "Q6_K repacked" in answer  # the output, which no table has repacked
    assert set(prompt) == {"Q4_K"} | ({"Q5_K repacked"} & set(prompt))
    assert bytes_of(prompt) < bytes_of(answer)


def test_the_table_decides_which_of_two_types_reads_faster() -> None:
    q4_1, q4_k = (prefill_s(works_of(name)[1], RATES, HOST_NAME, 512) for name in ("Q4_1", "Q4_K_S"))
    assert q4_1 > 2 * q4_k


@pytest.mark.parametrize("slower", [1.5, 1.2, 0.7])
def test_what_an_answer_of_one_type_taught_says_nothing_of_another(slower: float) -> None:
    (q4_1, _), (q4_0, _) = works_of("Q4_1"), works_of("Q4_0")
    before_s = [decode_s(each, RATES) for each in (q4_1, q4_0)]
    after = fit_rates(RATES, [Run(q4_1, 1 / (slower * before_s[0]))])
    assert decode_s(q4_1, after) == pytest.approx(slower * before_s[0], rel=0.03)
    assert decode_s(q4_0, after) == pytest.approx(before_s[1], rel=0.1)


def test_without_a_table_an_answer_teaches_the_memory_and_a_second_one_its_type() -> None:
    before = expected_rates(MACHINE)
    (q4_1, _), (q4_0, _) = works_of("Q4_1"), works_of("Q4_0")
    first_s, second_s = decode_s(q4_1, before), decode_s(q4_0, before)
    after = fit_rates(before, [Run(q4_1, 1 / (2 * first_s))])
    assert decode_s(q4_0, after) > 1.5 * second_s  # memory may be half as fast
    both = fit_rates(before, [Run(q4_1, 1 / (2 * first_s)), Run(q4_0, 1 / second_s)])
    assert decode_s(q4_1, both) == pytest.approx(2 * first_s, rel=0.05)
    assert decode_s(q4_0, both) == pytest.approx(second_s, rel=0.05)


def test_a_gpu_is_predicted_by_its_own_table() -> None:
    card = Device(
        name="GPU0",
        kind=DeviceKind.GPU,
        total_bytes=1 << 40,
        free_bytes=1 << 40,
        bytes_per_s=200e9,
        link_bytes_per_s=1e9,
    )
    slow_q4_1 = TypeTable({"Q4_1": cost(0.01, 0.01), "Q4_0": cost(0.002, 0.0005), "Q6_K": cost(0.003, 0.001)})
    rates = expected_rates(Machine(HOST, (card,)), {"GPU0": slow_q4_1})
    works = []
    for name in ("Q4_1", "Q4_0"):
        part = {name: TypeWork(1e9, 5e5)}
        works.append(
            Work(read_bytes={"GPU0": bytes_of(part)}, operations={"GPU0": 2e9}, weights={"GPU0": part}, n_layers=1)
        )
    assert decode_s(works[0], rates) > 4 * decode_s(works[1], rates)
    assert prefill_s(works[0], rates, HOST_NAME, 512) > 10 * prefill_s(works[1], rates, HOST_NAME, 512)


@pytest.mark.parametrize(
    ("types", "n_prompt", "n_answer", "repacked"),
    [
        (("Q4_0", "Q4_K"), 10_000, 1, ("Q4_0",)),  # prompts gain by Q4_K as in the file
        (("Q4_0", "Q4_K"), 1, 10_000, ()),  # answers by both repacked
        (("Q4_K",), 10_000, 1, ()),
        (("Q4_0", "Q6_K"), 10_000, 1, ()),  # Q6_K has one path
    ],
)
def test_types_are_repacked_apart_where_some_gain_and_others_lose(
    types: tuple[str, ...], n_prompt: int, n_answer: int, repacked: tuple[str, ...]
) -> None:
    known = weights_by_kind((tensor(name), 1.0) for name in types)
    assert types_worth_repacking(known, TABLE, n_prompt, n_answer) == repacked


# Types whose kernels compute tokens one after the other, beside some kinds that a copy may have.
SLOW = {"Q4_1": cost(0.07, 0.048), "Q5_0": cost(0.06, 0.022), "Q8_0": cost(0.06, 0.018), "F16": cost(0.08, 0.02)}


@pytest.mark.parametrize(
    ("more", "copies"),
    [
        ({"BF16": cost(0.09, 0.010)}, {"Q4_1": "BF16", "Q5_0": "BF16", "Q8_0": "BF16"}),
        ({}, {"Q4_1": "F16"}),  # a processor without AVX512_BF16
        ({"BF16": cost(0.09, 0.060)}, {"Q4_1": "F16"}),
        ({"BF16": cost(0.09, 0.060), "F16": cost(0.08, 0.04)}, {}),
        ({"BF16": cost(0.09, 0.010), "Q4_1 repacked": cost(0.05, 0.03)}, {"Q5_0": "BF16", "Q8_0": "BF16"}),
        ({"BF16": cost(0.09, 0.010), "Q2_K": cost(0.03, 0.014)}, {"Q4_1": "BF16", "Q5_0": "BF16", "Q8_0": "BF16"}),
    ],
)
def test_a_type_has_a_copy_in_what_this_machine_reads_half_as_fast_again(
    more: dict[str, TypeCost], copies: dict[str, str]
) -> None:
    assert faster_copies(TypeTable(SLOW | more), is_repacked=True) == copies


def test_what_is_repacked_has_a_copy_only_where_nothing_is_repacked() -> None:
    table = TypeTable({"Q4_0": cost(0.06, 0.022), "Q4_0 repacked": cost(0.03, 0.02), "BF16": cost(0.09, 0.01)})
    assert faster_copies(table, is_repacked=True) == {}
    assert faster_copies(table, is_repacked=False) == {"Q4_0": "BF16"}


def test_nothing_has_a_copy_before_types_were_measured() -> None:
    assert faster_copies(TypeTable(), is_repacked=True) == {}


@pytest.mark.parametrize(
    ("name", "shape", "is_a_matrix"),
    [
        ("blk.0.ffn_up.weight", (2048, 2048), True),
        ("blk.0.ffn_up.weight", (2048, 2048, 1, 1), True),
        ("blk.0.ffn_up_exps.weight", (2048, 2048, 8), False),
        ("blk.0.ffn_up.bias", (2048,), False),
        ("output.weight", (2048, 4096), False),
        ("token_embd.weight", (2048, 4096), False),
    ],
)
def test_matrices_that_every_token_of_a_prompt_is_multiplied_with_are_copied(
    name: str, shape: tuple[int, ...], is_a_matrix: bool
) -> None:
    kind = tensor_type_named("Q4_1")
    info = TensorInfo(name, shape, kind.type_id, 0, kind.tensor_bytes(shape))
    assert is_copied(info, {"Q4_1": "BF16"}) == is_a_matrix
    assert not is_copied(info, {"Q5_1": "BF16"})
    assert copy_bytes([info], {"Q4_1": "BF16"}) == (2 * info.n_elements if is_a_matrix else 0)


def test_a_plan_has_the_memory_and_the_speed_of_copies_or_neither() -> None:
    header = header_of("llama-3.1-8b")
    kind = tensor_type_named("Q4_1")
    tensors = tuple(
        replace(each, type_id=kind.type_id, n_bytes=kind.tensor_bytes(each.shape)) if len(each.shape) == 2 else each
        for each in header.tensors
    )
    model = PlannedModel(header, tensors)
    layout = WeightLayout(copies=(("Q4_1", "BF16"),), copy_from=24)
    rates = expected_rates(MACHINE, {HOST_NAME: replace(TABLE, types={**TABLE.types, "BF16": cost(0.09, 0.01)})})

    def planned(free_bytes: int, run_config: RunConfig) -> Assessment:
        machine = Machine(replace(HOST, free_bytes=free_bytes, total_bytes=1 << 34))
        return best_assessment(model, run_config, machine, rates)

    own = planned(1 << 40, RunConfig(n_ctx=4096))
    copied = planned(1 << 40, RunConfig(n_ctx=4096, layout=layout))
    n_bytes = copy_bytes(tensors, dict(layout.copies))
    assert n_bytes > 1 << 30
    assert copied.profile.total_bytes == own.profile.total_bytes + n_bytes
    assert [(extra.what, extra.n_bytes) for extra in copied.profile.extras] == [("copy in BF16 for prompts", n_bytes)]
    assert own.speed is not None
    assert copied.speed is not None
    assert copied.speed.prefill_tps > 2 * own.speed.prefill_tps
    assert copied.speed.decode_tps == own.speed.decode_tps
    # Memory that is enough for the model, and not for copies beside the margins.
    tight = planned(own.profile.total_bytes + n_bytes + (512 << 20), RunConfig(n_ctx=4096, layout=layout))
    assert tight.profile == replace(own.profile, run_config=tight.profile.run_config)
    assert tight.profile.run_config.layout.copies == ()
    assert tight.verdict is FitLevel.FITS
