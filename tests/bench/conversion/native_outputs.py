"""What llama.cpp computes from token ids on the CPU, all in F32 (weights as they are, cache, no flash attention).

It runs in a child process, so that a fault there does not take the comparison along. ggml looks GELU up in a table of
F16 numbers, whose error of about 3e-4 would hide any other: asked for, GELU is computed anew in each graph instead.
"""

from __future__ import annotations

import ctypes
import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from llama_cpp import llama_cpp as native
from numpy.typing import NDArray

from app.engine.llama.eval_callback import Tensor
from app.engine.llama.native import ggml_function

_ROOT = Path(__file__).parents[3]
_N_CTX = 256  # or what the longest text takes
_F32 = np.dtype(np.float32)


@dataclass(frozen=True, slots=True)
class NativeOutputs:
    """The outputs, a row for each position or text, and how often GELU was computed anew."""

    values: NDArray[np.float32]
    n_gelus: int

    def with_values(self, values: NDArray[Any]) -> NativeOutputs:
        return replace(self, values=values)


def native_logits(gguf: Path, ids: list[int], adapter: Path | None = None, gelu: str = "") -> NativeOutputs:
    """The logits of each token, under a LoRA `adapter` if there is one, and with GELU of a kind (`GELUS`)."""
    return _in_child({"gguf": str(gguf), "ids": ids, "adapter": str(adapter or ""), "gelu": gelu})


def native_vectors(gguf: Path, texts: Sequence[Sequence[int]], gelu: str = "") -> NativeOutputs:
    """The vector of each text, pooled as the file has it; of a model that ranks its scores."""
    return _in_child({"gguf": str(gguf), "texts": list(map(list, texts)), "gelu": gelu})


def _in_child(request: Mapping[str, Any]) -> NativeOutputs:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "outputs.npz"
        command = [sys.executable, "-m", "tests.bench.conversion.native_outputs", str(out)]
        done = subprocess.run(command, input=json.dumps(request).encode(), capture_output=True, cwd=_ROOT)
        if done.returncode != 0:
            sys.exit(done.stderr[-2_000:].decode("utf-8", "replace"))
        found = np.load(out)
        return NativeOutputs(found["values"], int(found["n_gelus"]))


def _tanh(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def _erf(x: NDArray[np.float64]) -> NDArray[np.float64]:
    values: NDArray[np.float64] = 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))
    return values


GELUS: Mapping[str, Callable[[NDArray[np.float64]], NDArray[np.float64]]] = {"tanh": _tanh, "erf": _erf}


class ExactGelu:
    """A callback that replaces what each GELU or GEGLU of a graph on the CPU gave; `n_replaced` counts them."""

    def __init__(self, kind: str) -> None:
        self.callback = native.ggml_backend_sched_eval_callback(self._on_node)
        self.n_replaced = 0
        self._gelu = GELUS[kind]
        names = (f"ggml_{name}op_name" for name in ("", "unary_", "glu_"))
        op_name, unary_name, glu_name = (ggml_function(name, ctypes.c_char_p, ctypes.c_int) for name in names)
        self._op_name, self._names = op_name, {b"UNARY": unary_name, b"GLU": glu_name}
        self._sources: list[NDArray[np.float32]] = []

    def _on_node(self, address: int, is_asking: bool, _data: object) -> bool:
        """Want every node, so that each is computed alone: then the inputs of the next one are there as it is asked
        for, and its output, which may take their place, comes after."""
        node = ctypes.cast(address, ctypes.POINTER(Tensor)).contents
        op = self._op_name(node.op)
        if op not in self._names or self._names[op](node.op_params[0]) not in (b"GELU", b"GEGLU"):
            return True
        if is_asking:
            self._sources = [_array(source.contents).copy() for source in node.src if source]
            return True
        gated = self._sources
        if op == b"GLU" and len(gated) == 1:
            halves = np.split(gated[0], 2, axis=-1)
            gated = halves[::-1] if node.op_params[1] else halves
        values = self._gelu(gated[0].astype(np.float64))
        _array(node)[...] = values * gated[1] if len(gated) > 1 else values
        self.n_replaced += 1
        return True


def _array(tensor: Tensor) -> NDArray[np.float32]:
    """The numbers of a tensor, in their place, with numpy's order of dimensions (slowest first)."""
    shape, strides = tuple(tensor.ne)[::-1], tuple(tensor.nb)[::-1]
    n_bytes = sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=True)) + _F32.itemsize
    return np.ndarray(shape, _F32, (ctypes.c_char * n_bytes).from_address(tensor.data), strides=strides)


def _compute(request: Mapping[str, Any]) -> NativeOutputs:
    native.llama_backend_init()
    model_params = native.llama_model_default_params()
    model_params.use_extra_bufts = False
    model = native.llama_model_load_from_file(request["gguf"].encode(), model_params)
    exact = ExactGelu(request["gelu"]) if request["gelu"] else None
    params = native.llama_context_default_params()
    n_longest = max(map(len, request.get("texts", [request.get("ids")])))
    params.n_ctx = params.n_batch = params.n_ubatch = max(_N_CTX, n_longest)
    params.type_k = params.type_v = native.GGML_TYPE_F32
    params.flash_attn_type = 0
    if exact:
        params.cb_eval = exact.callback
    if "ids" in request:
        params.pooling_type = native.LLAMA_POOLING_TYPE_NONE  # a decoder gets the states of each token from its encoder
        values = _logits(model, native.llama_init_from_model(model, params), request["ids"], request["adapter"])
    else:
        params.embeddings = True
        values = _vectors(model, native.llama_init_from_model(model, params), request["texts"])
    return NativeOutputs(values, exact.n_replaced if exact else 0)


def _logits(model: int, context: int, ids: list[int], adapter: str) -> NDArray[np.float32]:
    n_vocab = native.llama_vocab_n_tokens(native.llama_model_get_vocab(model))
    if adapter:
        lora = native.llama_adapter_lora_init(model, adapter.encode())
        loras, scales = (native.llama_adapter_lora_p_ctypes * 1)(lora), (ctypes.c_float * 1)(1.0)
        assert native.llama_set_adapters_lora(context, loras, 1, scales) == 0
    batch = _batch(ids)
    assert not native.llama_model_has_encoder(model) or native.llama_encode(context, batch) == 0
    assert native.llama_decode(context, batch) == 0
    rows = [native.llama_get_logits_ith(context, i) for i in range(len(ids))]
    return np.stack([np.ctypeslib.as_array(row, (n_vocab,)).copy() for row in rows])


def _vectors(model: int, context: int, texts: list[list[int]]) -> NDArray[np.float32]:
    is_ranker = native.llama_pooling_type(context) == native.LLAMA_POOLING_TYPE_RANK
    size = native.llama_model_n_cls_out(model) if is_ranker else native.llama_model_n_embd_out(model)
    compute = native.llama_encode if native.llama_model_has_encoder(model) else native.llama_decode
    found = []
    for ids in texts:
        native.llama_memory_clear(native.llama_get_memory(context), True)
        assert compute(context, _batch(ids)) == 0
        found.append(np.ctypeslib.as_array(native.llama_get_embeddings_seq(context, 0), (size,)).copy())
    return np.stack(found)


def _batch(ids: list[int]) -> Any:
    batch = native.llama_batch_init(len(ids), 0, 1)
    batch.n_tokens = len(ids)
    for i, token in enumerate(ids):
        batch.token[i], batch.pos[i], batch.logits[i] = token, i, 1
        batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
    return batch


if __name__ == "__main__":
    outputs = _compute(json.load(sys.stdin))
    np.savez(sys.argv[1], values=outputs.values, n_gelus=outputs.n_gelus)
