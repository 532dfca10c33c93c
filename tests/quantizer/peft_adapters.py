"""Writes LoRA adapters as PEFT saves them, with numpy alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from tests.quantizer.checkpoints import write_safetensors

__all__ = ["ALPHA", "RANK", "pair", "write_peft"]

RANK, ALPHA = 4, 8


def pair(module: str, n_in: int, n_out: int) -> dict[str, np.ndarray]:
    """The two random matrices of one module, by the names that they are saved under."""
    rng = np.random.default_rng(len(module))
    name = f"base_model.model.{module}"
    return {
        f"{name}.lora_A.weight": rng.standard_normal((RANK, n_in), np.float32),
        f"{name}.lora_B.weight": rng.standard_normal((n_out, RANK), np.float32),
    }


def write_peft(folder: Path, tensors: dict[str, np.ndarray], **settings: Any) -> Path:
    """Write adapter_config.json and the matrices into `folder`, which is made; `settings` replace the usual ones."""
    usual = {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "bias": "none", "base_model_name_or_path": None}
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text(json.dumps(usual | settings))
    write_safetensors(folder / "adapter_model.safetensors", tensors, "F32")
    return folder
