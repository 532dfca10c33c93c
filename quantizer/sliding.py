"""Which layers of a model look back over a window only, and how far.

Owns the table of llama.cpp's patterns. Knows nothing of what a layer keeps.
Source: `load_arch_hparams` in src/models and `set_swa_pattern` in src/llama-hparams.cpp, as vendored in
llama-cpp-python 0.3.36.
"""

from __future__ import annotations

from dataclasses import dataclass

from quantizer.header import ArrayRef, Header
from quantizer.hyperparameters import hyperparameter, layer_values

__all__ = ["Windows", "windows_of"]

_WINDOW_KEY, _PATTERN_KEY = "attention.sliding_window", "attention.sliding_window_pattern"


@dataclass(frozen=True, slots=True)
class Windows:
    """`n_tokens` of the window, 0 for none, and for each layer whether it has one."""

    n_tokens: int
    is_windowed: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class _Pattern:
    """One layer in `period` sees everything: the last of them, or the first. 0: all layers have the window.

    `default` is the window of a file that names none, `fixed` one that llama.cpp takes whatever the file says, and
    `n_layers` the only depth at which an architecture has windows at all.
    """

    period: int = 0
    is_dense_first: bool = False
    default: int = 0
    fixed: int = 0
    n_layers: int = 0

    def windows(self, index: int) -> bool:
        """Whether the layer `index` has a window."""
        if not self.period:
            return True
        return index % self.period != (0 if self.is_dense_first else self.period - 1)


# Architectures whose pattern is in the file have a period only for form's sake.
_PATTERNS = {
    "afmoe": _Pattern(4),
    "cohere2": _Pattern(4),
    "cohere2moe": _Pattern(4, is_dense_first=True),
    "exaone-moe": _Pattern(4, default=128),
    "exaone4": _Pattern(4, default=4096, n_layers=64),
    "gemma2": _Pattern(2, default=4096),
    "gemma3": _Pattern(6),
    "gemma3n": _Pattern(5),
    "gemma4": _Pattern(6),
    "gpt-oss": _Pattern(2),
    "granite_swa": _Pattern(),
    "laguna": _Pattern(4, is_dense_first=True),
    "lfm2": _Pattern(),
    "lfm2moe": _Pattern(),
    "llama4": _Pattern(4, default=8192, fixed=8192),
    "maple": _Pattern(),
    "mellum": _Pattern(4),
    "mimo2": _Pattern(),
    "muse-glimmer": _Pattern(4),
    "olmo2": _Pattern(4),
    "plamo3": _Pattern(8),
    "smallthinker": _Pattern(4, is_dense_first=True, fixed=4096),
    "spark2_5": _Pattern(),
    "step35": _Pattern(),
}


def windows_of(header: Header, n_layers: int) -> Windows:
    """Return the windows of the `n_layers` layers of a model, prediction layers left out."""
    pattern = _PATTERNS.get(header.architecture)
    n_tokens = _n_tokens(header, pattern, n_layers) if pattern else 0
    if pattern is None or not n_tokens:
        return Windows(0, (False,) * n_layers)
    return Windows(n_tokens, tuple(_layers(header, pattern, n_layers)))


def _n_tokens(header: Header, pattern: _Pattern, n_layers: int) -> int:
    if pattern.n_layers not in (0, n_layers):
        return 0
    has_key = f"{header.architecture}.{_WINDOW_KEY}" in header.fields
    n_tokens = hyperparameter(header, _WINDOW_KEY) if has_key else pattern.default
    return pattern.fixed or n_tokens if n_tokens else 0


def _layers(header: Header, pattern: _Pattern, n_layers: int) -> list[bool]:
    field = header.fields.get(f"{header.architecture}.{_PATTERN_KEY}")
    if field is not None and isinstance(field.value, ArrayRef):
        return [bool(value) for value in layer_values(header, _PATTERN_KEY, n_layers)]
    named = hyperparameter(header, _PATTERN_KEY)
    chosen = _Pattern(named, pattern.is_dense_first) if named else pattern
    return [chosen.windows(index) for index in range(n_layers)]
