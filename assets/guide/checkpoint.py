"""The Hugging Face checkpoint: names, config and bfloat16 weights, as transformers would save them.

Owns the mapping from our module's names. Independent of training.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from assets.guide.model import Llama, Shape

PREFIX = "model."
END_OF_TEXT, END_OF_TURN = 0, 2


def save_checkpoint(model: Llama, folder: Path) -> None:
    """Write model.safetensors (bf16), config.json and generation_config.json."""
    weights = {PREFIX + name: weight.detach().to("cpu", torch.bfloat16) for name, weight in model.named_parameters()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    _write(folder / "config.json", _config(model.shape))
    _write(
        folder / "generation_config.json",
        {"eos_token_id": [END_OF_TURN, END_OF_TEXT], "pad_token_id": END_OF_TEXT, "do_sample": False},
    )


def load_checkpoint(folder: Path) -> Llama:
    """Return the model of a folder in float32."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    model = Llama(
        Shape(
            n_vocab=config["vocab_size"],
            n_hidden=config["hidden_size"],
            n_feed_forward=config["intermediate_size"],
            n_layers=config["num_hidden_layers"],
            n_heads=config["num_attention_heads"],
            n_kv_heads=config["num_key_value_heads"],
            n_positions=config["max_position_embeddings"],
            rope_theta=config["rope_theta"],
            rms_norm_eps=config["rms_norm_eps"],
        )
    )
    weights = load_file(folder / "model.safetensors")
    model.load_state_dict({name.removeprefix(PREFIX): weight.float() for name, weight in weights.items()})
    return model


def _config(shape: Shape) -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": None,
        "eos_token_id": END_OF_TURN,
        "pad_token_id": END_OF_TEXT,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "hidden_size": shape.n_hidden,
        "initializer_range": 0.02,
        "intermediate_size": shape.n_feed_forward,
        "max_position_embeddings": shape.n_positions,
        "mlp_bias": False,
        "num_attention_heads": shape.n_heads,
        "num_hidden_layers": shape.n_layers,
        "num_key_value_heads": shape.n_kv_heads,
        "rms_norm_eps": shape.rms_norm_eps,
        "rope_scaling": None,
        "rope_theta": shape.rope_theta,
        "tie_word_embeddings": True,
        "dtype": "bfloat16",
        "use_cache": True,
        "vocab_size": shape.n_vocab,
    }


def _write(path: Path, value: dict[str, object]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
