"""The precompiled map of characters with which unigram tokenizers normalize a text, and whether llama.cpp survives it.

A double array (Kanda 2018, "Space- and Time-Efficient String Dictionaries") that maps prefixes of a text to offsets in
a list of replacements. Source: `xcda_array_view` and `normalize_prefix` in src/llama-vocab.cpp of llama.cpp as vendored
in llama-cpp-python 0.3.36: it throws for an index beyond either, in the middle of a tokenization that nothing catches.
"""

from __future__ import annotations

from quantizer.gguf.header import Header

_KEY = "tokenizer.ggml.precompiled_charsmap"
_READ_BY = "t5"
_N_SIZE = 4  # bytes: the first number, the size of the array in bytes
_MAX_BYTES = 16 << 20  # sentencepiece's largest has 0.4 MB
_IS_VALUE = 1 << 31
_BYTE_TYPES = (0, 1)  # unsigned and signed


def character_map_faults(header: Header) -> tuple[str, ...]:
    """Return why llama.cpp could not survive the map in a file; nothing without one."""
    if _KEY not in header.fields or header.text("tokenizer.ggml.model") != _READ_BY:
        return ()
    try:
        ref = header.array_ref(_KEY)
    except KeyError:
        return ("its map of characters is no list",)
    if ref.element_type not in _BYTE_TYPES or ref.count > _MAX_BYTES:
        return ("its map of characters is no list of bytes, or too long",)
    return (
        () if is_sound_map(header.source.read(ref.start, ref.stop)) else ("its map of characters leads beyond its end",)
    )


def is_sound_map(content: bytes) -> bool:
    """Return whether no text leads beyond the array or the replacements of a map.

    Every entry that could be a child of another is checked, whether or not a text leads there.
    """
    import numpy as np  # not before a file has a map: the service starts without it

    n_array = int.from_bytes(content[:_N_SIZE], "little")
    replacements = content[_N_SIZE + n_array :]
    if len(content) > _MAX_BYTES or not replacements.endswith(b"\0"):
        return False
    nodes = np.frombuffer(content, "<u4", n_array // 4, _N_SIZE)
    if not len(nodes):
        return True  # nothing is replaced
    bases = (nodes >> 10) << ((nodes & (1 << 9)) >> 6)
    places = np.arange(len(nodes), dtype=np.uint32)
    labels = nodes & (_IS_VALUE | 0xFF)
    is_child = (labels > 0) & (labels < _IS_VALUE)
    next_bases = (places ^ bases)[is_child]
    if (next_bases | 0xFF).max(initial=bases[0] | 0xFF) >= len(nodes):  # whatever byte comes next
        return False
    is_leaf = ((nodes[is_child] >> 8) & 1).astype(bool)
    offsets = nodes[next_bases[is_leaf]] & (_IS_VALUE - 1)
    return int(offsets.max(initial=0)) < len(replacements)
