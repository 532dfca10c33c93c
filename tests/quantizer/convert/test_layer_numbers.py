from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from quantizer.architectures import find_architecture
from quantizer.checkpoint.errors import CheckpointError
from quantizer.convert.layer_numbers import layer_number_entries
from quantizer.convert.source_model import FileTensor
from quantizer.gguf.header_encoder import Entry
from quantizer.gguf.tensor_types import tensor_type_named
from tests.quantizer.memory_source import Memory

OUTLINES: dict[str, dict[str, Any]] = json.loads((Path(__file__).parents[1] / "outlines.json").read_text())
N_LAYERS = 2
ENDINGS = ("alpha_n", "alpha_p", "beta", "eps")


def tensor(name: str, value: float, shape: tuple[int, ...] = (1,)) -> FileTensor:
    """A tensor of equal numbers in BF16, as Apertus is published."""
    data = struct.pack("<f", value)[2:]
    return FileTensor(name, shape, tensor_type_named("BF16"), Memory(data * shape[0]), 0)


def numbers() -> dict[str, FileTensor]:
    names = [f"model.layers.{i}.mlp.act_fn.{ending}" for i in range(N_LAYERS) for ending in ENDINGS]
    return {name: tensor(name, 0.5 * number) for number, name in enumerate(names)}


def entries(tensors: dict[str, FileTensor], name: str = "apertus") -> list[Entry]:
    architecture, config = find_architecture(OUTLINES[name]["config"] | {"num_hidden_layers": N_LAYERS})
    return list(layer_number_entries(tensors, config, architecture))


def test_the_numbers_of_all_layers_become_one_row() -> None:
    rows = {entry.key: struct.unpack("<IQ2f", entry.payload) for entry in entries(numbers())}
    f32 = 6
    assert rows == {f"xielu.{name}": (f32, 2, 0.5 * i, 0.5 * (i + 4)) for i, name in enumerate(ENDINGS)}


def test_other_architectures_have_no_such_rows() -> None:
    assert entries({}, "arcee") == []


@pytest.mark.parametrize(
    ("odd", "message"),
    [
        (None, "lacks model"),
        (tensor("", 1.0, (2,)), "not a single number"),
        (tensor("", float("inf")), "is inf"),
        (FileTensor("", (1,), tensor_type_named("I32"), Memory(bytes(4)), 0), "not a single number"),
    ],
)
def test_what_is_no_number_is_named(odd: FileTensor | None, message: str) -> None:
    name = "model.layers.1.mlp.act_fn.beta"
    tensors = {key: value for key, value in numbers().items() if key != name} | ({name: odd} if odd else {})
    with pytest.raises(CheckpointError, match=message) as caught:
        entries(tensors)
    assert name in str(caught.value)
