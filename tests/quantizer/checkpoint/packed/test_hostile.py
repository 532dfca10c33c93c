from __future__ import annotations

import json
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quantizer.checkpoint.config import CheckpointError
from tests.quantizer.packers import FORMATS, Packed, read

SAME_SIZE = {
    "U8": ["I8", "F8_E4M3", "F8_E5M2"],
    "I8": ["U8", "F8_E4M3"],
    "F8_E4M3": ["U8", "I8", "F8_E5M2"],
    "F16": ["BF16"],
    "BF16": ["F16"],
    "I32": ["F32"],
    "F32": ["I32"],
    "I64": ["F64"],
    "F8_E8M0": ["U8"],
}
HOSTILE = st.sampled_from(
    [None, 0, -1, 1, 3, 2**31, 2**70, 1e300, "x", True, [], [0], [1, 1], [2**40, 2], {}, {"a": 1}]
)


@cache  # packing takes longer than reading
def whole(form: str) -> Packed:
    return FORMATS[form](np.random.default_rng(3), "w", (32, 64))


@pytest.mark.parametrize("form", FORMATS)
@settings(max_examples=60)
@given(data=st.data())
def test_whatever_is_changed_the_answer_is_a_weight_or_a_typed_error(form: str, data: st.DataObject) -> None:
    packed = whole(form)
    tensors, config, metadata = dict(packed.tensors), dict(packed.config), dict(packed.metadata)
    kinds = ["drop", "shape", "dtype", "bytes", "setting", *(["metadata"] if metadata else [])]
    kind = data.draw(st.sampled_from(kinds))
    name = data.draw(st.sampled_from(sorted(tensors)))
    if kind == "setting":
        change(config, data)
    elif kind == "metadata":
        described = json.loads(metadata["w.weight"])
        change(described, data)
        metadata["w.weight"] = data.draw(st.sampled_from([json.dumps(described), "[", "1", "{}"]))
    elif kind == "drop":
        del tensors[name]
    else:
        dtype, array = tensors[name]
        tensors[name] = damaged(kind, dtype, array, data)
    try:
        weights = read(config, tensors, metadata=metadata)
    except CheckpointError:
        return
    assert all(np.isfinite(weight.view("<f4")).all() for weight in weights.values() if weight.dtype != np.uint8)


def change(config: dict[str, Any], data: st.DataObject) -> None:
    """Give one setting, at any depth, a value that it should not have."""
    key = data.draw(st.sampled_from(sorted(config)))
    if isinstance(config[key], dict) and config[key] and data.draw(st.booleans()):
        config[key] = dict(config[key])
        change(config[key], data)
    else:
        config[key] = data.draw(HOSTILE)


def damaged(kind: str, dtype: str, array: np.ndarray, data: st.DataObject) -> tuple[str, np.ndarray]:
    """The part with another shape of the same size, another type of the same width, or other bytes."""
    raw = np.frombuffer(array.tobytes(), array.dtype)
    if kind == "shape":
        shapes = [(raw.size,), (1, raw.size), (raw.size, 1), (1, 1, raw.size), array.shape[::-1]]
        return dtype, raw.reshape(data.draw(st.sampled_from(shapes)))
    if kind == "dtype":
        return data.draw(st.sampled_from(SAME_SIZE[dtype])), array.view("<i4") if dtype == "F32" else array
    content = data.draw(st.binary(min_size=array.itemsize, max_size=array.itemsize))
    # a float array is encoded by value: NaN and infinities are what matter there
    if array.dtype.kind == "f":
        return dtype, np.full_like(array, data.draw(st.sampled_from([np.nan, np.inf, -np.inf, 0, -1])))
    return dtype, np.frombuffer(content * raw.size, array.dtype).reshape(array.shape)
