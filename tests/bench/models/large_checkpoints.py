"""Write random checkpoints of about 1.1B parameters, to time their conversion (`time_conversion.py`).

    uv run --group train python tests/bench/models/large_checkpoints.py FOLDER [NAME ...]

Kinds whose tensors take more than copying: experts that are stacked or cut, states, fused projections. Each takes
2.2 GB of disk and 5 GB of memory. They have the tokenizer of the tests, and hence few words.
"""

from __future__ import annotations

import argparse
import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
import transformers

from tests.quantizer.checkpoints import tokenizer, tokenizer_config

_COMMON = {
    "vocab_size": 272,
    "hidden_size": 1024,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "max_position_embeddings": 4096,
    "bos_token_id": 258,
    "eos_token_id": 260,
    "pad_token_id": 258,
}
_DENSE = {"hidden_size": 2048, "intermediate_size": 6144, "num_attention_heads": 32, "head_dim": 64}
_MAMBA = {"mamba_n_heads": 64, "mamba_d_head": 64, "mamba_d_state": 128, "mamba_n_groups": 1}
_KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "olmoe": (
        "OlmoeConfig",
        {"num_experts": 16, "intermediate_size": 1024, "num_hidden_layers": 20, "num_key_value_heads": 16},
    ),
    "glm4moe": (
        "Glm4MoeConfig",
        {"n_routed_experts": 16, "num_experts_per_tok": 2, "moe_intermediate_size": 1024, "num_hidden_layers": 20}
        | {"intermediate_size": 4096, "first_k_dense_replace": 1, "head_dim": 64, "num_nextn_predict_layers": 0},
    ),
    "granitehybrid": (
        "GraniteMoeHybridConfig",
        {"layer_types": (["linear_attention"] * 4 + ["full_attention"]) * 4, "num_hidden_layers": 20}
        | {"num_local_experts": 16, "num_experts_per_tok": 2, "intermediate_size": 896}
        | {"shared_intermediate_size": 1024, "mamba_n_heads": 32, "mamba_d_head": 64},
    ),
    "falcon-h1": ("FalconH1Config", _DENSE | _MAMBA | {"mamba_d_ssm": 4096, "num_hidden_layers": 15}),
    "lfm2": (
        "Lfm2Config",
        _DENSE | {"layer_types": ["conv", "conv", "full_attention"] * 9, "num_hidden_layers": 27},
    ),
}


def write(name: str, folder: Path) -> None:
    """Write the checkpoint called `name` into `folder`, in bfloat16."""
    class_name, changes = _KINDS[name]
    config = getattr(transformers, class_name)(**deepcopy(_COMMON | changes))
    torch.manual_seed(7)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    n_parameters = sum(parameter.numel() for parameter in model.parameters())
    model.save_pretrained(folder)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer()))
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer_config()))
    print(f"{name}: {n_parameters / 1e9:.2f}B parameters", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", default=list(_KINDS), help=", ".join(_KINDS))
    options = parser.parse_args()
    for name in options.names or list(_KINDS):
        write(name, options.folder / name)


if __name__ == "__main__":
    main()
