"""Gemma 4's assistant as a file: why one cannot draft for a model.

Its layers read the keys and values of the model's last two layers, one with a window and one without, as they lie in
the model's cache. llama.cpp takes the sizes of these views from the assistant's file and checks nothing. Source:
`create_memory` in src/llama-model.cpp, src/models/gemma4-assistant.cpp and gemma4.cpp, as vendored in llama-cpp-python
0.3.36.
"""

from __future__ import annotations

from collections.abc import Iterator

from quantizer.gguf.header import Header
from quantizer.gguf.hyperparameters import hyperparameter, layer_values

ASSISTANT, _MODEL = "gemma4-assistant", "gemma4"
_PATTERN = "attention.sliding_window_pattern"


def assistant_faults(head: Header, model: Header) -> Iterator[str]:
    """Yield why the assistant of the validated header `head` cannot draft for `model`."""
    if model.architecture != _MODEL:
        yield "it drafts for Gemma 4 models only"
        return
    width, expected = hyperparameter(model, "embedding_length"), hyperparameter(head, "embedding_length_out")
    if expected != width:
        yield f"it needs hidden states of {expected} numbers, and this model's have {width}"
    n_layers, n_own = hyperparameter(model, "block_count"), hyperparameter(head, "block_count")
    if hyperparameter(head, "nextn_predict_layers") != n_own:
        yield "some of its layers do not predict"
    windowed = [bool(value) for value in layer_values(model, _PATTERN, n_layers)]
    if windowed[-2:] != [True, False]:
        yield "the last two layers of the model are not one with a window and one without"
        return
    cached = {False: _cache(model, n_layers, n_layers - 1), True: _cache(model, n_layers, n_layers - 2)}
    for index, has_window in enumerate(map(bool, layer_values(head, _PATTERN, n_own))):
        if (own := _cache(head, n_own, index)) != cached[has_window]:
            shapes = (f"{n_heads} key-value heads of {size} numbers" for n_heads, size in (own, cached[has_window]))
            yield "its layer {} reads {}, and this model's cache has {}".format(index, *shapes)
    windows = [hyperparameter(header, "attention.sliding_window") for header in (head, model)]
    if windows[0] != windows[1]:
        yield f"its window has {windows[0]} tokens, and this model's {windows[1]}"


def _cache(header: Header, n_layers: int, index: int) -> tuple[int, int]:
    """Return the key-value heads of a layer, and the numbers of each."""
    ending = "_swa" if layer_values(header, _PATTERN, n_layers)[index] else ""
    n_heads = layer_values(header, "attention.head_count_kv", n_layers)[index]
    return n_heads, hyperparameter(header, f"attention.key_length{ending}")
