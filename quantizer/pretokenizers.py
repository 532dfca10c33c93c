"""Which of llama.cpp's pre-tokenizers a tokenizer.json means, told by what it does and not by a hash of its output.

A signature is the chain of splits before the byte-level step. Patterns are facts of the published tokenizers; llama.cpp
carries an adapted form of each under the name on the right (src/llama-vocab.cpp, vendored in llama-cpp-python 0.3.36).
"""

from __future__ import annotations

from typing import Any

from quantizer.errors import CheckpointError

__all__ = ["recognise", "signature"]

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA_3 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + _TAIL
_QWEN_2 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + _TAIL
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_WORDS = r"[^\r\n\p{L}\p{N}]?" + _UPPER + "*" + _LOWER + "+", r"[^\r\n\p{L}\p{N}]?" + _UPPER + "+" + _LOWER + "*"
_SLASH_TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_O200K = f"{_WORDS[0]}{_CONTRACTIONS}?|{_WORDS[1]}{_CONTRACTIONS}?" + r"|\p{N}{1,3}" + _SLASH_TAIL
_TEKKEN = f"{_WORDS[0]}|{_WORDS[1]}" + r"|\p{N}" + _SLASH_TAIL
_CJK = "[一-龥぀-ゟ゠-ヿ]+"
_DEEPSEEK_V3 = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

_BYTE_LEVEL_SPLIT = "byte-level words"
_DIGITS = "single digits"

# (signature, ignore_merges) -> llama.cpp's name; None where the flag makes no difference there.
_KNOWN: dict[tuple[tuple[str, ...], bool | None], str] = {
    ((_LLAMA_3,), True): "llama-bpe",
    ((_LLAMA_3,), False): "smaug-bpe",
    ((_QWEN_2,), False): "qwen2",
    ((_BYTE_LEVEL_SPLIT,), None): "gpt-2",
    ((_DIGITS, _BYTE_LEVEL_SPLIT), None): "smollm",
    ((_O200K,), False): "gpt-4o",
    ((_TEKKEN,), True): "tekken",
    ((r"\p{N}{1,3}", _CJK, _DEEPSEEK_V3), False): "deepseek-v3",
}


def recognise(tokenizer: dict[str, Any], ignore_merges: bool) -> str:
    """llama.cpp's name for the pre-tokenizer in a parsed tokenizer.json.

    Raises CheckpointError that prints the splits when no entry of the table means the same.
    """
    steps = signature(tokenizer.get("pre_tokenizer"))
    name = _KNOWN.get((steps, ignore_merges)) or _KNOWN.get((steps, None))
    if name is None:
        shown = "; ".join(steps) or "none"
        raise CheckpointError(
            f"The tokenizer splits text in a way that llama.cpp has no name for (splits: {shown}; "
            f"ignore_merges: {str(ignore_merges).lower()}).",
            "Look for a GGUF of this model.",
        )
    return name


def signature(step: object) -> tuple[str, ...]:
    """The chain of splits that a `pre_tokenizer` object describes; byte-level without splitting adds nothing."""
    if not isinstance(step, dict):
        return ()
    match step.get("type"):
        case "Sequence":
            inner = step.get("pretokenizers")
            return tuple(part for each in inner for part in signature(each)) if isinstance(inner, list) else ()
        case "Split":
            return (_split_pattern(step),)
        case "Digits":
            return (_DIGITS,) if step.get("individual_digits") else ("digits",)
        case "ByteLevel":
            return (_BYTE_LEVEL_SPLIT,) if step.get("use_regex", True) else ()
    return (f"{str(step.get('type'))[:64]} (unknown step)",)


def _split_pattern(step: dict[str, Any]) -> str:
    pattern = step.get("pattern")
    text = next(iter(pattern.values()), "") if isinstance(pattern, dict) else ""
    is_plain = step.get("behavior") == "Isolated" and not step.get("invert")
    return str(text) if is_plain else f"{text} ({step.get('behavior')}, inverted: {step.get('invert')})"
