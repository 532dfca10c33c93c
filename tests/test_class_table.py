"""The judgement of `tests/bench/conversion/class_table.py`: what is equal, what is explained, else an exit with 1."""

from __future__ import annotations

import ctypes
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from app.engine.llama.eval_callback import Tensor
from app.engine.llama.native import ggml_function
from tests.bench.conversion.class_rows import (
    Cell,
    Compared,
    Row,
    attempted,
    difference_cell,
    exit_code,
    peer_cell,
    plan_cell,
    refusal_cell,
    table,
    types_cell,
    worst_table,
)
from tests.bench.conversion.compare_files import Difference, Values, compare_keys, compare_tensors
from tests.bench.conversion.convert_with_peer import as_published
from tests.bench.conversion.explained_differences import graph_deviations, reason_for
from tests.bench.conversion.native_outputs import GELUS, ExactGelu


def floats(*numbers: float) -> Values:
    return Values("F32", (len(numbers),), np.array(numbers, np.float32).tobytes())


def next_to(number: float, n_steps: int) -> float:
    for _ in range(n_steps):
        number = float(np.nextafter(np.float32(number), np.float32(math.inf)))
    return number


def row(**cells: Cell) -> Row:
    return Row("llama", "LlamaForCausalLM", "llama", cells)


def test_the_last_bit_of_a_value_may_differ() -> None:
    assert not list(compare_tensors({"a": floats(1.0, -2.0)}, {"a": floats(next_to(1.0, 1), next_to(-2.0, 1))}))
    assert not list(compare_tensors({"a": floats(0.0)}, {"a": floats(-0.0)}))


@pytest.mark.parametrize("number", [1.0, -1.0, 0.0])
def test_two_bits_of_a_value_may_not(number: float) -> None:
    (found,) = compare_tensors({"a": floats(number)}, {"a": floats(next_to(number, 2))})
    assert found == Difference("a", "values up to 2 steps apart")


def test_blocks_are_equal_or_not() -> None:
    mine, theirs = (Values("Q8_0", (32, 1), bytes([last] * 34)) for last in (0, 1))
    assert [difference.key for difference in compare_tensors({"a": mine}, {"a": theirs})] == ["a"]
    assert not list(compare_tensors({"a": mine}, {"a": mine}))


def test_a_tensor_of_another_shape_or_name_is_told() -> None:
    found = compare_tensors({"a": floats(1.0), "b": floats(1.0)}, {"a": floats(1.0, 2.0), "c": floats(1.0)})
    assert [difference.text for difference in found] == ["F32 1 for F32 2", "only in ours", "only in theirs"]


def test_keys_that_differ_are_told_and_equal_ones_are_not() -> None:
    found = compare_keys({"same": [1, 2], "other": 1, "ours": True}, {"same": [1, 2], "other": 2, "theirs": "x"})
    assert list(found) == [
        Difference("other", "1 for 2"),
        Difference("ours", "True for nothing"),
        Difference("theirs", "nothing for 'x'"),
    ]


def test_a_difference_is_explained_only_as_it_is_known() -> None:
    known = Difference("ssm_a", "values up to 2 steps apart")
    assert reason_for("mamba", known)
    assert reason_for("llama", known) is None
    assert reason_for("mamba", Difference("ssm_a", "only in ours")) is None


def test_a_row_of_the_peer_is_right_where_all_is_explained() -> None:
    known, unknown = Difference("attention.key_length", "16 for nothing"), Difference("block_count", "3 for 4")
    assert peer_cell("llama", "", []) == Cell("ok")
    assert peer_cell("llama", "without prediction layers", [known]).text == "ok: 1 explained, without prediction layers"
    assert peer_cell("llama", "", [known, unknown]).text == "block_count: 3 for 4"
    assert not peer_cell("llama", "", [known, unknown]).is_ok


def test_a_number_for_all_layers_is_the_list_of_it() -> None:
    assert reason_for("gemma4", Difference("attention.head_count_kv", "[2, 2, 2, 2] for 2"))
    assert reason_for("gemma3n", Difference("feed_forward_length", f"512 for {[512] * 25!r}"[:68]))
    assert reason_for("gemma4", Difference("attention.head_count_kv", "[2, 1, 2, 2] for 2")) is None
    assert reason_for("gemma4", Difference("attention.head_count_kv", "2 for [2, 2, 1]")) is None


def test_a_refusal_of_the_peer_needs_a_reason_too() -> None:
    assert refusal_cell("gptneox", "KeyError: 'rotary_pct'").is_ok
    assert not refusal_cell("gptneox", "KeyError: 'vocab_size'").is_ok
    assert refusal_cell("gpt2", "KeyError: 'n_ctx'").is_ok
    assert not refusal_cell("llama", "KeyError: 'n_ctx'").is_ok


def test_the_peer_gets_the_kinds_of_layers_as_they_were_published() -> None:
    kinds = ["linear_attention", "full_attention"]
    granite = {"architectures": ["GraniteMoeHybridForCausalLM"], "layer_types": kinds, "num_local_experts": 0}
    published = as_published(granite | {"num_experts_per_tok": 2})
    assert published == granite | {"layer_types": ["mamba", "attention"]}
    assert as_published(published) == published
    nemotron = {"architectures": ["NemotronHForCausalLM"], "layers_block_type": kinds, "n_routed_experts": 8}
    assert as_published(nemotron)["hybrid_override_pattern"] == "M*"
    assert "n_routed_experts" not in as_published(nemotron)
    assert as_published(nemotron | {"layers_block_type": ["moe"]})["n_routed_experts"] == 8


def test_the_peer_gets_other_settings_as_they_are() -> None:
    settings = {"architectures": ["LlamaForCausalLM"], "layer_types": ["full_attention"], "num_experts_per_tok": 2}
    assert as_published(settings) == settings


def test_other_types_must_have_been_told() -> None:
    warning = "25 of 40 tensors use Q5_0: their row length is not a multiple of 256 (Q4_K). They are token_embd.weight."
    assert types_cell("Q4_K_M", ("F32", "Q4_K", "Q6_K"), ()) == Cell("ok")
    assert types_cell("Q4_K_M", ("F32", "Q5_0"), (warning,)) == Cell("ok: Q5_0 instead")
    assert not types_cell("Q4_K_M", ("F32", "Q5_0"), ()).is_ok


def test_a_plan_may_be_off_by_three_percent() -> None:
    real = {"weights": 1000.0, "caches": 0.0}
    assert plan_cell(real, real) == Cell("ok")
    assert plan_cell(real | {"weights": 971.0}, real).text == "ok: 2.9% off"
    assert plan_cell(real | {"weights": 960.0}, real) == Cell("weights: 960 for 1,000", False)
    assert not plan_cell(real | {"caches": 1.0}, real).is_ok


def equal_to(difference: float, noise: float = 0.0, plain: float | None = None, *reasons: str) -> Compared:
    return Compared(difference, noise, difference if plain is None else plain, reasons)


def test_outputs_of_f32_are_equal_within_half_a_millionth() -> None:
    assert difference_cell(equal_to(5e-7)).text == "5.0e-07"
    assert not difference_cell(equal_to(5.1e-7)).is_ok
    assert not difference_cell(equal_to(math.nan)).is_ok
    assert not difference_cell(equal_to(math.nan), ["it is near"], ["it is near"]).is_ok


def test_outputs_may_be_as_far_off_as_three_times_what_f32_costs_the_original() -> None:
    assert difference_cell(equal_to(2.9e-6, 1e-6)).text == "2.9e-06, F32 itself 1.0e-06"
    assert difference_cell(equal_to(2.9e-6, 1e-6)).is_ok
    assert not difference_cell(equal_to(3.1e-6, 1e-6)).is_ok
    assert not difference_cell(equal_to(3.1e-6, math.nan)).is_ok


def test_what_explains_a_difference_is_shown_with_what_it_explains() -> None:
    cell = difference_cell(equal_to(2e-7, 1e-7, 4e-4, "a table"))
    assert (cell.text, cell.is_ok, cell.reasons) == ("2.0e-07 (explained: 4.0e-04)", True, ("a table",))
    assert not difference_cell(equal_to(3e-6, 1e-7, 4e-4, "a table")).is_ok


def test_outputs_may_be_off_where_conversion_warns_of_an_approximation() -> None:
    cell = difference_cell(equal_to(0.05), ["it is near"], ["it is near", "other"])
    assert (cell.text, cell.is_ok, cell.reasons) == ("5.0e-02 as warned", True, ("it is near",))
    assert difference_cell(equal_to(1e-7), ["it is near"], ["it is near"]).reasons == ()


def test_other_warnings_excuse_no_outputs() -> None:
    assert not difference_cell(equal_to(0.05), [], ["25 of 40 tensors become Q5_0"]).is_ok
    assert not difference_cell(equal_to(0.05), ["it is near"], []).is_ok


def test_the_largest_difference_of_each_architecture_is_told() -> None:
    near, far = (row(difference=difference_cell(equal_to(each, 1e-7, 3e-4, "a table"))) for each in (1e-7, 2e-7))
    assert worst_table([near, far, row(difference=Cell("an error", False))]).splitlines()[2:] == [
        "| llama | 2 | 2.0e-07 | 1.0e-07 | 3.0e-04 |"
    ]


class _Norm:
    """An RMSNorm by its name, as modules of transformers are told apart."""

    def __init__(self, epsilon: float) -> None:
        self.variance_epsilon = epsilon


_RMSNorm = type("SomeRMSNorm", (_Norm,), {})


class _Model:
    def __init__(self, *epsilons: float) -> None:
        self.config = SimpleNamespace(get_text_config=lambda: SimpleNamespace(rms_norm_eps=1e-5))
        self.parts = [_RMSNorm(epsilon) for epsilon in epsilons]

    def modules(self) -> list[Any]:
        return [*self.parts, object()]


def test_a_deviation_of_a_graph_concerns_models_of_its_architectures_that_it_changes() -> None:
    assert graph_deviations("llama", _Model(1e-5, 1e-6)) == []
    assert graph_deviations("minicpm3", _Model(1e-5, 1e-5)) == []
    (deviation,) = graph_deviations("minicpm3", model := _Model(1e-5, 1e-6))
    deviation.imitate(model)
    assert [part.variance_epsilon for part in model.parts] == [1e-5, 1e-5]


@pytest.mark.parametrize(("name", "kind"), [("GELU", "tanh"), ("GEGLU", "erf")])
def test_gelu_of_a_graph_is_computed_anew_even_where_its_output_replaces_its_input(name: str, kind: str) -> None:
    """The callback gets the nodes as llama.cpp hands them out: it asks before each, and again once it is computed."""
    exact = ExactGelu(kind)
    values = np.linspace(-3, 3, 8, dtype=np.float32)
    node, source = Tensor(), Tensor()
    for tensor, n in ((source, 8), (node, 8 if name == "GELU" else 4)):
        tensor.ne[:], tensor.nb[:] = (n, 1, 1, 1), (4, 4 * n, 4 * n, 4 * n)
        tensor.data = values.ctypes.data
    node.src[0] = ctypes.pointer(source)
    node.op, node.op_params[0] = _numbers(name)
    expected = GELUS[kind](values[:4].astype(np.float64)) * values[4:]
    if name == "GELU":
        expected = GELUS[kind](values.astype(np.float64))
    assert exact.callback(ctypes.addressof(node), True, None)
    values[:] = 0
    assert exact.callback(ctypes.addressof(node), False, None)
    np.testing.assert_allclose(values[: len(expected)], expected, rtol=1e-6)
    assert exact.n_replaced == 1


def _numbers(name: str) -> tuple[int, int]:
    """ggml's numbers of an operation, and of its kind."""
    kinds = ("unary", "UNARY") if name == "GELU" else ("glu", "GLU")
    op_name = ggml_function("ggml_op_name", ctypes.c_char_p, ctypes.c_int)
    kind_name = ggml_function(f"ggml_{kinds[0]}_op_name", ctypes.c_char_p, ctypes.c_int)
    op = next(number for number in range(200) if op_name(number).decode() == kinds[1])
    return op, next(number for number in range(30) if kind_name(number).decode() == name)


def test_an_error_is_a_cell() -> None:
    assert attempted(lambda: Cell(str(1 // 0))) == Cell("ZeroDivisionError: integer division or modulo by zero", False)


def test_one_wrong_cell_makes_it_exit_with_1() -> None:
    assert exit_code([row(a=Cell("ok"), b=Cell("ok: 1 explained"))]) == 0
    assert exit_code([row(a=Cell("ok")), row(a=Cell("ok"), b=Cell("x", False))]) == 1


def test_the_table_ends_with_what_explains_it() -> None:
    text = table([row(a=Cell("ok", True, ("why",))), row(a=Cell("x | y", False, ("why",)), b=Cell("ok"))])
    assert text.splitlines() == [
        "| checkpoint | class | architecture | a | b |",
        "|---|---|---|---|---|",
        "| llama | LlamaForCausalLM | llama | ok |  |",
        "| llama | LlamaForCausalLM | llama | x \\| y | ok |",
        "",
        "   2 × why",
    ]
