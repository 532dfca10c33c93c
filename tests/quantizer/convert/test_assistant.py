"""Gemma 4's assistant from its checkpoint, against a GGUF of the same weights that the converter did not write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from app.engine.load.head_file import validate_head
from quantizer.gguf.gguf_reader import ArrayRef
from quantizer.gguf.header import Header, read_header
from quantizer.gguf.tensor_types import file_type_named
from quantizer.write.plan_options import PlanOptions
from quantizer.write.quantize import execute
from quantizer.write.quantize_plan import plan
from tests.quantizer.checkpoints import write_checkpoint
from tests.quantizer.gguf_assistants import N_OWN, N_WINDOW, assistant, assistant_weights, assisted_model
from tests.quantizer.gguf_files import N_EMBD, N_FF, N_HEADS, N_TOKENS

_PUBLISHED = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "nextn.pre_projection.weight": "pre_projection.weight",
    "nextn.post_projection.weight": "post_projection.weight",
}
_IN_LAYER = {
    "attn_norm.weight": "input_layernorm.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_q_norm.weight": "self_attn.q_norm.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "post_attention_norm.weight": "post_attention_layernorm.weight",
    "ffn_norm.weight": "pre_feedforward_layernorm.weight",
    "post_ffw_norm.weight": "post_feedforward_layernorm.weight",
    **{f"ffn_{what}.weight": f"mlp.{what}_proj.weight" for what in ("gate", "up", "down")},
    "layer_output_scale.weight": "layer_scalar",
}
_CONFIG: dict[str, Any] = {
    "architectures": ["Gemma4AssistantForCausalLM"],
    "backbone_hidden_size": N_EMBD,
    "text_config": {
        "attention_bias": False,
        "attention_k_eq_v": True,
        "global_head_dim": 32,
        "head_dim": 16,
        "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size": N_OWN,
        "intermediate_size": N_FF,
        "layer_types": ["sliding_attention", "full_attention"],
        "max_position_embeddings": 128,
        "num_attention_heads": N_HEADS,
        "num_global_key_value_heads": 1,
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
        "num_kv_shared_layers": 2,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {
            "full_attention": {"rope_type": "proportional", "rope_theta": 1e4, "partial_rotary_factor": 1.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
        "sliding_window": N_WINDOW,
        "vocab_size": N_TOKENS,
    },
}


def written(folder: Path) -> Path:
    named: dict[str, np.ndarray] = {"masked_embedding.centroids.weight": np.ones((2, N_OWN), np.float32)}
    for name, array in assistant_weights().items():
        block, _, rest = name.partition("blk.")[2].partition(".")
        if rest:
            named[f"model.layers.{block}.{_IN_LAYER[rest]}"] = array
        elif name in _PUBLISHED:
            named[_PUBLISHED[name]] = array
    return write_checkpoint(folder, _CONFIG, {name: ("F32", array) for name, array in named.items()})


def converted(folder: Path, base: Path, file_type: str = "F32") -> Path:
    output = folder / f"assistant-{file_type}.gguf"
    source = written(folder / "checkpoint")
    execute(plan(source, file_type_named(file_type), output, PlanOptions(base=base)), 2, True, lambda _done: None)
    return output


def tensors(path: Path) -> dict[str, bytes]:
    return {tensor.name: tensor.data.tobytes() for tensor in gguf.GGUFReader(path).tensors}


def settings(header: Header) -> dict[str, object]:
    keys = [key for key in header.fields if key.startswith(f"{header.architecture}.")]
    return {
        key: list(header.array(key)) if isinstance(header.metadata[key], ArrayRef) else header.metadata[key]
        for key in keys
    }


def test_it_has_the_tensors_and_settings_of_one_written_by_hand(tmp_path: Path) -> None:
    base = assisted_model(tmp_path / "m.gguf")
    ours, theirs = converted(tmp_path, base), assistant(tmp_path / "theirs.gguf")
    assert tensors(ours) == tensors(theirs)
    mine, other = (settings(read_header(path)) for path in (ours, theirs))
    assert {key: mine.get(key) for key in other if not key.endswith("feed_forward_length")} == {
        key: value for key, value in other.items() if not key.endswith("feed_forward_length")
    }


@pytest.mark.parametrize("file_type", ["F16", "Q8_0"])
def test_one_of_any_type_belongs_to_its_model(tmp_path: Path, file_type: str) -> None:
    base = assisted_model(tmp_path / "m.gguf")
    assert validate_head(converted(tmp_path, base, file_type), read_header(base)).target_layers == (3,)
