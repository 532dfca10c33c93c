"""Draft heads in files: which kind a file is, what it needs to run, and whether it belongs to a model.

llama.cpp ends the process where a head does not fit its model, so all of that is checked here, from the headers.
Source: src/models/eagle3.cpp and dflash.cpp, the layers' inputs in src/models, `extract_layer_inputs` in
src/llama-context.cpp of llama.cpp as vendored in llama-cpp-python 0.3.36.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from app.engine.load.assistant_file import ASSISTANT, assistant_faults
from app.engine.load.prediction_layers import is_prediction_file, mtp_layer_bytes, prediction_file_faults
from app.engine.speculative.draft_heads import HeadKind, HeadSpec
from offload.footprint.auxiliary_models import DRAFT_HEADS
from quantizer.gguf.file_names import head_rank, may_hold_layers
from quantizer.gguf.gguf_reader import ArrayRef, ModelFileError
from quantizer.gguf.header import Header
from quantizer.gguf.hyperparameters import hyperparameter, layer_values
from quantizer.gguf.tensor_types import TENSOR_TYPES
from quantizer.gguf.validation import validate_gguf

MAX_BLOCK_TOKENS = 32  # that a head predicts at once; those in use have 8 to 16
_REMEDY = "Choose the head that was made for this model for --draft, or leave it out."
_EAGLE3, _DFLASH = "eagle3", "dflash"
_OF_LAYERS = (HeadKind.MTP, HeadKind.ASSISTANT)  # kinds in files whose names begin with mtp-
_KINDS = {_EAGLE3: HeadKind.EAGLE3, ASSISTANT: HeadKind.ASSISTANT}
_N_EAGLE3_LAYERS, _MAX_TARGET_LAYERS = 3, 64
_SELECTOR, _MARKOV = "selector_hidden.weight", "markov_w1.weight"  # only DFlash 2 heads have one, only DSpark the other
_WINDOW = "attention.sliding_window"
_SELECTOR_SIZES = ("selector_top_k", "selector_rank", "conv_kernel_size", "conv_group_size")
# `graph_max_nodes` of src/llama-context.cpp for DFlash 2, and what `build_dflash2_conv` of src/models/dflash.cpp makes.
_LEAST_NODES, _NODES_PER_TENSOR = 1024, 12
_N_CONVOLUTIONS, _NODES_BESIDE_TAPS, _NODES_PER_TAP = 4, 6, 8
_LAYER_NODES, _OTHER_NODES = 50, 95  # 43 to 50 and 71 were counted; optional tensors bring as many as they have

# Architectures whose layers' inputs llama.cpp stores, and whose last layer's output, by kind of file.
_WITH_INPUTS = frozenset(
    [
        *("bailingmoe3", "gemma4", "gpt-oss", "hunyuan-dense", "hunyuan_vl", "lfm2", "lfm2moe", "llama", "mimo2"),
        *("minimax-01", "minimax-m2", "muse-glimmer", "nanbeige", "nemotron_h", "nemotron_h_moe", "qwen3", "qwen35"),
        *("qwen35moe", "qwen3moe", "qwen3next"),
    ]
)
_WITH_OUTPUT = {
    _EAGLE3: frozenset(
        [
            *("bailingmoe3", "gemma4", "gpt-oss", "mimo2", "nemotron_h", "nemotron_h_moe", "qwen35", "qwen35moe"),
            "qwen3next",
        ]
    ),
    _DFLASH: frozenset(["mimo2", "nemotron_h", "nemotron_h_moe"]),
}


def is_head(header: Header) -> bool:
    return header.architecture in DRAFT_HEADS or is_prediction_file(header)


def head_kind(header: Header) -> HeadKind:
    if header.architecture not in DRAFT_HEADS:
        return HeadKind.MTP
    if header.architecture in _KINDS:
        return _KINDS[header.architecture]
    names = {tensor.name for tensor in header.tensors}
    if _SELECTOR in names:
        return HeadKind.DFLASH2
    return HeadKind.DSPARK if _MARKOV in names else HeadKind.DFLASH


def read_head(head: Header, model: Header) -> HeadSpec:
    """Return what the validated `head` needs to run over `model`. Raises ModelFileError with the reason if it does not
    belong to it, or could not run."""
    for reason in _faults(head, model):  # the first
        raise ModelFileError(f"{head.path.name} cannot draft for {model.path.name}: {reason}.", _REMEDY)
    kind, layers, n_layers = head_kind(head), _target_layers(head), hyperparameter(head, "block_count")
    if kind in _OF_LAYERS:
        n_predicting = [hyperparameter(header, "nextn_predict_layers") for header in (head, model)]
        output = hyperparameter(model, "block_count") - n_predicting[1]
        return HeadSpec(kind, (output,), n_layers=n_predicting[0] if kind is HeadKind.MTP else 1)
    if kind is HeadKind.EAGLE3:
        return HeadSpec(kind, layers)
    names = {tensor.name for tensor in head.tensors}
    samples_from_anchor = kind is HeadKind.DSPARK and _flag(head, "sample_from_anchor", default=True)
    return HeadSpec(
        kind,
        layers,
        n_block=hyperparameter(head, "block_size") - (0 if samples_from_anchor else 1),
        mask_token=head.integer("tokenizer.ggml.mask_token_id") or 0,
        samples_from_anchor=samples_from_anchor,
        is_causal=_flag(head, "attention.causal", default=False),
        has_confidence="conf_proj.weight" in names,
        n_candidates=hyperparameter(head, "selector_top_k") if kind is HeadKind.DFLASH2 else 0,
        has_windows_only=bool(hyperparameter(head, _WINDOW))
        and all(layer_values(head, f"{_WINDOW}_pattern", n_layers)),
    )


def validate_head(path: Path, model: Header) -> HeadSpec:
    """Return what the file at `path` needs to draft for `model`. Raises ModelFileError as `read_head` does."""
    header = validate_gguf(path)
    if not is_head(header):
        raise ModelFileError(f"{path.name} is not a draft head: it is a {header.architecture} model.", _REMEDY)
    return read_head(header, model)


def find_head(model: Header) -> tuple[Path | None, tuple[str, ...]]:
    """Return the draft head beside `model`, by its name, that belongs to it, and why others were passed over. Files of
    prediction layers come last, and for a model without such layers only."""
    try:
        beside = [path.name for path in model.path.parent.iterdir()]
    except OSError:  # the folder may be searchable but not readable
        return None, ()
    heads = sorted((rank, name) for name in beside if (rank := head_rank(name)) is not None)
    names = [name for _, name in heads]
    if (layers := sorted(filter(may_hold_layers, beside))) and mtp_layer_bytes(model) is None:
        names += layers
    passed_over: list[str] = []
    for path in (model.path.with_name(name) for name in names if name != model.path.name):
        try:
            spec = validate_head(path, model)
        except ModelFileError as error:
            passed_over.append(error.cause)
        else:
            if not may_hold_layers(path.name) or spec.kind in _OF_LAYERS:
                return path, tuple(passed_over)
    return None, tuple(passed_over)


def _faults(head: Header, model: Header) -> Iterator[str]:
    if (head.integer("split.count") or 1) > 1:
        yield "it is split into several files"
    if (kind := head_kind(head)) in _OF_LAYERS:
        yield from (assistant_faults if kind is HeadKind.ASSISTANT else prediction_file_faults)(head, model)
        yield from _vocabulary_faults(head, model)
        return
    yield from _layer_faults(head, model)
    yield from _width_faults(head, model)
    yield from _vocabulary_faults(head, model)
    if head.architecture == _EAGLE3:
        if len(_target_layers(head)) != _N_EAGLE3_LAYERS:
            yield f"an EAGLE-3 head reads {_N_EAGLE3_LAYERS} layers and not {len(_target_layers(head))}"
        if hyperparameter(head, "block_count") != 1:
            yield f"an EAGLE-3 head has one layer and not {hyperparameter(head, 'block_count')}"
    else:
        yield from _dflash_faults(head)
    keys, values = (hyperparameter(head, f"attention.{what}_length") for what in ("key", "value"))
    if keys != values:
        yield "its attention keys and values differ in length"


def _layer_faults(head: Header, model: Header) -> Iterator[str]:
    n_layers = hyperparameter(model, "block_count") - hyperparameter(model, "nextn_predict_layers")
    layers = _target_layers(head)
    if model.architecture not in _WITH_INPUTS:
        yield f"llama.cpp does not expose the hidden states of {model.architecture} models"
    if not layers:
        yield "it does not list its target layers"
    if bad := [layer for layer in layers if not 0 <= layer <= n_layers]:
        yield f"its target layer {bad[0]} does not exist: the model has {n_layers} layers"
    if n_layers in layers and model.architecture not in _WITH_OUTPUT[head.architecture]:
        yield f"llama.cpp does not expose the last hidden state of {model.architecture} models"


def _width_faults(head: Header, model: Header) -> Iterator[str]:
    own, width = hyperparameter(head, "embedding_length"), hyperparameter(model, "embedding_length")
    expected = hyperparameter(head, "target_hidden_size") if head.architecture == _EAGLE3 else own
    if expected != width:
        yield f"it needs hidden states of {expected} numbers, and this model's have {width}"
    missing = {"token_embd.weight", "output.weight"} - {tensor.name for tensor in head.tensors}
    if missing and own != width:
        yield f"it uses {' and '.join(sorted(missing))} of its model, but its width is {own} and not {width}"
    if hyperparameter(head, "embedding_length_out") not in (0, own):
        yield "its embedding_length_out differs from its embedding_length"


def _vocabulary_faults(head: Header, model: Header) -> Iterator[str]:
    counts = [_n_tokens(header) for header in (head, model)]
    if counts[0] != counts[1]:
        yield f"its vocabulary has {counts[0]} tokens and not {counts[1]}"
        return
    one, other = (header.strings("tokenizer.ggml.tokens") for header in (model, head))
    different = next((index for index, pair in enumerate(zip(one, other, strict=True)) if pair[0] != pair[1]), None)
    if different is not None:
        texts = (tokens[different].decode("utf-8", "replace") for tokens in (other, one))
        yield "token {} is {!r} and not {!r}".format(different, *texts)
    mapped = next((tensor for tensor in head.tensors if tensor.name == "d2t"), None)
    if mapped is None:
        return
    if TENSOR_TYPES[mapped.type_id].name != "I64" or len(mapped.shape) != 1:
        yield "its token map (d2t) is not a list of 64-bit integers"
        return
    tokens = np.frombuffer(head.tensor_bytes(mapped), "<i8")
    if not tokens.size or tokens.min() < 0 or tokens.max() >= counts[0]:
        yield "its token map (d2t) contains ids outside of the vocabulary"


def _dflash_faults(head: Header) -> Iterator[str]:
    if hyperparameter(head, "hyper_connection.count"):
        yield "this engine cannot run heads with hyper-connections"
    if not 2 <= hyperparameter(head, "block_size") <= MAX_BLOCK_TOKENS:
        yield f"its block size is {hyperparameter(head, 'block_size')}, not 2 to {MAX_BLOCK_TOKENS}"
    mask = head.integer("tokenizer.ggml.mask_token_id")
    if mask is None or not 0 <= mask < _n_tokens(head):
        yield "it has no valid mask token"
    windows = layer_values(head, f"{_WINDOW}_pattern", hyperparameter(head, "block_count"))
    if hyperparameter(head, _WINDOW) and not any(windows):
        yield "it has a window, and no layer that uses it"
    if any(f"dflash.{name}" in head.fields for name in _SELECTOR_SIZES) or head_kind(head) is HeadKind.DFLASH2:
        yield from _selector_faults(head)


def _selector_faults(head: Header) -> Iterator[str]:
    """Yield why llama.cpp could not run the convolutions and the selector of a DFlash 2 head."""
    top_k, rank, n_taps, group = (hyperparameter(head, name) for name in _SELECTOR_SIZES)
    n_embd, n_layers = (hyperparameter(head, name) for name in ("embedding_length", "block_count"))
    n_tokens = _n_tokens(head)
    if missing := [name for name in _SELECTOR_SIZES if not hyperparameter(head, name)]:
        yield f"it has no {missing[0]}"
        return
    if n_embd % group:
        yield f"its width {n_embd} is not a multiple of its conv_group_size {group}"
    # Candidates and scores of all their pairs are returned in a row that is as wide as the head.
    if top_k * (top_k + 1) > n_embd or top_k > n_tokens:
        yield f"a head of width {n_embd} cannot have a selector_top_k of {top_k}"
    convolution = {"conv_base": (n_embd, n_taps, 2), "conv_proj.weight": (n_embd, 2 * n_taps * (n_embd // group))}
    needed: dict[str, tuple[int, ...]] = {
        "selector_predecessor.weight": (rank, n_tokens),
        "selector_successor.weight": (rank, n_tokens),
        _SELECTOR: (n_embd, rank),
        **{
            f"blk.{layer}.{part}_{name}": shape
            for layer in range(n_layers)
            for part in ("attn", "ffn")
            for name, shape in convolution.items()
        },
    }
    tensors = {tensor.name: tensor for tensor in head.tensors}
    for name, shape in needed.items():
        if name not in tensors:
            yield f"it lacks {name}"
            return
        if tensors[name].shape != shape:
            found, expected = (" × ".join(map(str, each)) for each in (tensors[name].shape, shape))
            yield f"its {name} is {found}, not {expected}"
        if name.endswith("_conv_base") and TENSOR_TYPES[tensors[name].type_id].name != "F32":
            yield f"its {name} is not in F32"  # the processor's kernels add no other type
    if _MARKOV in tensors:
        yield "it has a selector and a Markov head"
    # A graph with more nodes than llama.cpp has reserved ends the process. Taps beyond a block make none.
    of_convolution = _NODES_BESIDE_TAPS + _NODES_PER_TAP * min(n_taps, hyperparameter(head, "block_size"))
    n_nodes = _OTHER_NODES + n_layers * (_LAYER_NODES + _N_CONVOLUTIONS * of_convolution)
    if n_nodes > max(_LEAST_NODES, _NODES_PER_TENSOR * len(tensors)):
        yield f"llama.cpp has no room for a graph of {n_layers} layers with a conv_kernel_size of {n_taps}"


def _target_layers(head: Header) -> tuple[int, ...]:
    key = f"{head.architecture}.target_layers"
    layers = head.metadata.get(key)
    if not isinstance(layers, ArrayRef) or layers.count > _MAX_TARGET_LAYERS:
        return ()
    return tuple(layer for layer in head.array(key) if isinstance(layer, int))


def _n_tokens(header: Header) -> int:
    tokens = header.metadata.get("tokenizer.ggml.tokens")
    return tokens.count if isinstance(tokens, ArrayRef) else 0


def _flag(head: Header, suffix: str, *, default: bool) -> bool:
    value = head.metadata.get(f"{head.architecture}.{suffix}")
    return value if isinstance(value, bool) else default
