from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from quantizer.convert.layer_removal import check_removable, layers_to_remove, matrix_without_layers
from quantizer.convert.source_model import open_gguf
from quantizer.gguf.header import Header, read_header
from quantizer.gguf.layer_caches import layer_caches_of
from quantizer.gguf.tensor_types import file_type_named
from quantizer.mix.imatrix import ActivationStats, ImportanceMatrix
from quantizer.system.errors import UsageError
from quantizer.write.plan_options import PlanOptions
from quantizer.write.quantize import execute
from quantizer.write.quantize_plan import plan
from tests.quantizer.gguf_files import write_gguf

NORM = "attn_norm.weight"
Write = Callable[..., Path]


def layer_weights(layer: int, *names: str) -> dict[str, np.ndarray]:
    return {f"blk.{layer}.{name}": np.full(32, layer, np.float32) for name in names}


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def written(
        architecture: str, n_layers: int, figures: dict[str, Any], more: dict[int, tuple[str, ...]] | None = None
    ) -> Path:
        """A model whose layer i has a norm of values i, and the tensors `more` names."""
        writer = gguf.GGUFWriter(tmp_path / "model.gguf", architecture)
        writer.add_size_label("1B")
        writer.add_block_count(n_layers)
        writer.add_context_length(64)
        writer.add_embedding_length(32)
        writer.add_head_count(2)
        for suffix, value in figures.items():
            key = f"{architecture}.{suffix}"
            (writer.add_array if isinstance(value, list) else writer.add_uint32)(key, value)
        tensors = {"token_embd.weight": np.zeros((4, 32), np.float32)}
        for layer in range(n_layers):
            tensors |= layer_weights(layer, NORM, *(more or {}).get(layer, ()))
        write_gguf(writer, tensors)
        return tmp_path / "model.gguf"

    return written


def pruned(source: Path, *removed: int) -> Header:
    output = source.with_name("pruned.gguf")
    options = PlanOptions(removed_layers=removed)
    execute(plan(source, file_type_named("F32"), output, options), 1, True, lambda _event: None)
    return read_header(output)


def origins(header: Header) -> list[float]:
    """The layer of the source that each layer was."""
    norms = {t.name: t for t in header.tensors if t.name.endswith(NORM)}
    data = [header.tensor_bytes(norms[f"blk.{layer}.{NORM}"]) for layer in range(len(norms))]
    return [float(np.frombuffer(each, "<f4")[0]) for each in data]


def test_the_remaining_layers_are_renumbered_and_counted(write: Write) -> None:
    header = pruned(write("llama", 5, {}), 1, 3)
    assert origins(header) == [0, 2, 4]
    assert header.integer("llama.block_count") == 3
    assert list(header.array("localllm.removed_layers")) == [1, 3]
    assert "general.size_label" not in header.fields
    assert header.tensors[0].name == "token_embd.weight"


def test_lists_with_a_value_for_each_layer_lose_those_of_removed_layers(write: Write) -> None:
    kv_heads, more = [0, 2, 0, 2, 0], dict.fromkeys((1, 3), ("attn_k.weight",))
    header = pruned(write("lfm2", 5, {"attention.head_count_kv": kv_heads, "shortconv.l_cache": 3}, more), 1, 2)
    assert list(header.array("lfm2.attention.head_count_kv")) == [0, 2, 0]
    assert origins(header) == [0, 3, 4]
    assert [layer.state_elements > 0 for layer in layer_caches_of(header).layers] == [True, False, True]


def test_windows_stay_with_their_layers(write: Write) -> None:
    header = pruned(write("gemma3", 8, {"attention.sliding_window": 16}), 2)
    assert [layer.is_windowed for layer in layer_caches_of(header).layers] == [True] * 4 + [False, True, True]


def test_states_at_intervals_stay_with_their_layers_and_prediction_layers_stay_last(write: Write) -> None:
    attention, state = ("attn_k.weight",), ("ssm_a",)
    more = {0: state, 1: state, 2: state, 3: attention, 4: state, 5: state, 6: state, 7: attention}
    more[8] = (*attention, "nextn.eh_proj.weight")
    figures = {"nextn_predict_layers": 1, "ssm.conv_kernel": 4, "ssm.inner_size": 32, "ssm.state_size": 8}
    header = pruned(write("qwen35", 9, figures, more), 1, 3)
    assert origins(header) == [0, 2, 4, 5, 6, 7, 8]
    assert [layer.state_elements > 0 for layer in layer_caches_of(header).layers] == [True] * 5 + [False] * 2
    assert "blk.6.nextn.eh_proj.weight" in {tensor.name for tensor in header.tensors}


def test_dense_layers_at_the_front_are_counted_again(write: Write) -> None:
    more = {layer: ("ffn_up.weight",) if layer < 2 else ("ffn_up_exps.weight",) for layer in range(5)}
    header = pruned(write("deepseek", 5, {"leading_dense_block_count": 2}, more), 0, 3)
    assert header.integer("deepseek.leading_dense_block_count") == 1


def test_the_layers_that_change_least_go_but_never_the_last_of_a_kind(write: Write) -> None:
    kv_heads, more = [0, 2, 0, 0], {1: ("attn_k.weight",)}
    model = open_gguf(write("lfm2", 4, {"attention.head_count_kv": kv_heads, "shortconv.l_cache": 3}, more))
    assert layers_to_remove(model, [0.4, 0.1, 0.2, 0.3], 2) == (2, 3)
    with pytest.raises(UsageError, match="one layer of each kind must stay") as refused:
        check_removable(model, 3)
    assert "--prune-layers 2" in refused.value.remedy


@pytest.mark.parametrize(
    ("architecture", "n_layers", "n_removed", "cause"),
    [
        ("llama", 2, 2, "one layer must stay"),
        ("llama4", 8, 1, "Layers of llama4 models cannot be removed"),
        ("gemma3", 62, 1, "treats a gemma3 model with 61 layers differently"),
        ("deepseek2", 28, 1, "treats a deepseek2 model with 27 layers differently"),
    ],
)
def test_layers_that_must_stay_are_refused_with_the_reason(
    write: Write, architecture: str, n_layers: int, n_removed: int, cause: str
) -> None:
    source = write(architecture, n_layers, {})
    with pytest.raises(UsageError, match=cause):
        check_removable(open_gguf(source), n_removed)
    with pytest.raises(UsageError, match=cause):
        pruned(source, *range(n_removed))


def test_a_layer_that_the_model_does_not_have_is_refused(write: Write) -> None:
    with pytest.raises(UsageError, match="has layers 0 to 2"):
        pruned(write("llama", 3, {}), 3)


def test_files_of_a_split_model_lose_their_part(write: Write) -> None:
    source = write("llama", 4, {})
    execute(
        plan(source, file_type_named("F32"), source.with_name("s.gguf"), PlanOptions(max_shard_bytes=160)),
        *(1, True, lambda _event: None),
    )
    parts = sorted(source.parent.glob("s-*.gguf"))
    before = open_gguf(parts[0]).shard_counts
    options = PlanOptions(keep_split=True, removed_layers=(1, 2))
    planned = plan(parts[0], file_type_named("F32"), source.with_name("out.gguf"), options)
    assert sum(before) == 5
    assert sum(len(shard.tensors) for shard in planned.shards) == 3
    assert len(planned.shards) < len(before)


def test_an_importance_matrix_of_the_whole_model_follows_the_layers() -> None:
    stats = {layer: ActivationStats(np.full((1, 4), float(layer)), np.array([2])) for layer in range(3)}
    matrix = ImportanceMatrix({f"blk.{layer}.attn_q.weight": entry for layer, entry in stats.items()}, (), 2)
    matrix = replace(matrix, entries={**matrix.entries, "output.weight": stats[0]})
    cut = matrix_without_layers(matrix, (0,))
    assert cut.entries == {"blk.0.attn_q.weight": stats[1], "blk.1.attn_q.weight": stats[2], "output.weight": stats[0]}


def test_an_adapter_has_no_layers_to_leave_out(tmp_path: Path) -> None:
    from tests.quantizer.peft_adapters import pair, write_peft

    folder = write_peft(tmp_path / "adapter", pair("model.layers.0.self_attn.v_proj", 64, 32))
    with pytest.raises(UsageError, match="no layers of its own"):
        plan(folder, file_type_named("F16"), tmp_path / "a.gguf", PlanOptions(removed_layers=(0,)))
