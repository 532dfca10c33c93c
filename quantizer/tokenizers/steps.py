"""The steps of a tokenizer.json, each as a name, so that tables can be written of them.

Names are complete: two steps of one name do the same to a text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from quantizer.errors import CheckpointError

__all__ = ["BYTE_LEVEL_SPLIT", "DIGITS", "Preparation", "preparation"]

BYTE_LEVEL_SPLIT = "byte-level words"
DIGITS = "single digits"
# The last way of every pattern that leaves no text between its matches.
_COVERS_ALL = r"|\s+"


@dataclass(frozen=True, slots=True)
class Preparation:
    """Rewriting and cutting of a text before its tokens are searched for; steps that do nothing are left out."""

    rewriting: tuple[str, ...]
    cuts: tuple[str, ...]

    def refusal(self) -> CheckpointError:
        """Return the error for a preparation that llama.cpp does not have; it lists the steps."""
        return CheckpointError(
            f"The tokenizer prepares text in a way that llama.cpp has no name for "
            f"(rewriting: {_shown(self.rewriting)}; splits: {_shown(self.cuts)}).",
            "Look for a GGUF of this model.",
        )


def preparation(tokenizer: Mapping[str, Any]) -> Preparation:
    """Return the named steps of a parsed tokenizer.json."""
    return Preparation(
        _steps(tokenizer.get("normalizer"), "normalizers", _NORMALIZERS),
        _steps(tokenizer.get("pre_tokenizer"), "pretokenizers", _PRE_TOKENIZERS),
    )


def _shown(names: tuple[str, ...]) -> str:
    return "; ".join(names) or "none"


def _steps(step: object, inner: str, names: Mapping[str, Callable[[dict[str, Any]], str]]) -> tuple[str, ...]:
    if not isinstance(step, dict):
        return ()
    kind = str(step.get("type"))[:64]
    if kind == "Sequence":
        parts = step.get(inner)
        return tuple(name for part in parts for name in _steps(part, inner, names)) if isinstance(parts, list) else ()
    name = names[kind](step) if kind in names else kind
    return (name,) if name else ()


def _split(step: dict[str, Any]) -> str:
    pattern = _pattern(step)
    behavior, is_inverted = step.get("behavior"), bool(step.get("invert"))
    keeps_all = (behavior, is_inverted) == ("Removed", True) and pattern.endswith(_COVERS_ALL)
    if keeps_all or (behavior, is_inverted) == ("Isolated", False):
        return pattern
    return f"{pattern} ({behavior}{', inverted' if is_inverted else ''})"


def _pattern(step: dict[str, Any]) -> str:
    pattern = step.get("pattern")
    return str(next(iter(pattern.values()), "")) if isinstance(pattern, dict) else ""


def _byte_level(step: dict[str, Any]) -> str:
    cut = BYTE_LEVEL_SPLIT if step.get("use_regex", True) else ""
    return f"{cut or 'bytes'} after a space" if step.get("add_prefix_space") else cut


def _metaspace(step: dict[str, Any]) -> str:
    # before tokenizers 0.15 there was a flag instead of a scheme
    scheme = step.get("prepend_scheme") or ("always" if step.get("add_prefix_space", True) else "never")
    return f"Metaspace {scheme}" if step.get("replacement", "▁") == "▁" else f"Metaspace {step.get('replacement')}"


def _bert(step: dict[str, Any]) -> str:
    kept = [key for key in ("clean_text", "handle_chinese_chars") if not step.get(key, True)]
    return "BertNormalizer" + "".join(f" without {key}" for key in kept)


_NORMALIZERS: dict[str, Callable[[dict[str, Any]], str]] = {
    "BertNormalizer": _bert,
    "Prepend": lambda step: f"Prepend {step.get('prepend')}",
    "Replace": lambda step: f"Replace {_pattern(step)!r} {str(step.get('content'))!r}",
    "Strip": lambda step: f"Strip{' left' * bool(step.get('strip_left'))}{' right' * bool(step.get('strip_right'))}",
}
_PRE_TOKENIZERS: dict[str, Callable[[dict[str, Any]], str]] = {
    "ByteLevel": _byte_level,
    "Digits": lambda step: DIGITS if step.get("individual_digits") else "digits",
    "Metaspace": _metaspace,
    "Punctuation": lambda step: f"punctuation, {step.get('behavior', 'Isolated')}",
    "Split": _split,
}
