"""Gemma 3n and 4: layers that read the keys of others, and embeddings of the layers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quantizer.architectures import find_architecture
from quantizer.checkpoint.config import CheckpointError
from quantizer.convert.derived_tensors import ExtendedTensor
from quantizer.convert.source_model import FileTensor, SourceTensor
from quantizer.convert.tensor_mapping import map_tensors
from quantizer.gguf.gguf_reader import LocalFile, open_local
from quantizer.gguf.tensor_types import tensor_type_named

OUTLINES: dict[str, dict[str, Any]] = json.loads((Path(__file__).parents[2] / "outlines.json").read_text())


def converted(name: str, **tensors: list[int]) -> dict[str, SourceTensor]:
    nothing, stored = LocalFile(Path("nothing"), 0), tensor_type_named("F32")
    architecture, config = find_architecture(OUTLINES[name]["config"])
    shapes = OUTLINES[name]["tensors"] | tensors
    files = {key: FileTensor(key, tuple(shape)[::-1], stored, nothing, 0) for key, shape in shapes.items()}
    return map_tensors(files, config, architecture)


def origin_of(tensor: SourceTensor) -> SourceTensor:
    return origin_of(tensor.origin) if hasattr(tensor, "origin") else tensor


def test_a_layer_without_keys_gets_those_that_it_reads() -> None:
    tensors = converted("gemma3n")
    assert origin_of(tensors["blk.20.attn_k.weight"]).name == "blk.18.attn_k.weight"
    assert origin_of(tensors["blk.24.attn_v.weight"]).name == "blk.19.attn_v.weight"


def test_the_keys_of_a_published_checkpoint_stay() -> None:
    published = {"model.layers.20.self_attn.k_proj.weight": [64, 64]}
    assert origin_of(converted("gemma3n", **published)["blk.20.attn_k.weight"]).name == "blk.20.attn_k.weight"


def test_tokens_without_an_embedding_of_the_layers_use_the_first(tmp_path: Path) -> None:
    rows = np.arange(12, dtype="<f4").reshape(3, 4)
    (tmp_path / "rows").write_bytes(rows.tobytes())
    origin = FileTensor("x", (4, 3), tensor_type_named("F32"), open_local(tmp_path / "rows"), 0)
    slabs = [np.frombuffer(slab, "<f4").reshape(-1, 4) for slab in ExtendedTensor(origin, "x", 5).slabs(2)]
    assert [len(slab) for slab in slabs] == [2, 2, 1]
    assert np.array_equal(np.concatenate(slabs), rows[[0, 1, 2, 0, 0]])


def test_logits_without_a_cap_are_written_so() -> None:
    assert OUTLINES["gemma4"]["metadata"]["final_logit_softcapping"] == 30.0
    assert OUTLINES["gemma4-large"]["metadata"]["final_logit_softcapping"] == 0.0


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("gemma3n", {"num_kv_shared_layers": 4}),
        ("gemma3n", {"final_logit_softcapping": 20.0}),
        ("gemma3n", {"activation_sparsity_pattern": [0.0] * 25}),
        ("gemma4", {"num_kv_shared_layers": 1}),
        ("gemma4", {"use_bidirectional_attention": "all"}),
    ],
)
def test_what_llama_cpp_has_built_in_cannot_be_otherwise(name: str, changes: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match=f"has {next(iter(changes))} = "):
        find_architecture(OUTLINES[name]["config"] | changes)
