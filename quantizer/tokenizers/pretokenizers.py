"""The steps of a tokenizer.json, each as a name, and the llama.cpp pre-tokenizer that they correspond to: recognised by
its steps and not by a hash of its output.

Names are complete: two steps of one name do the same to a text. Patterns are facts of the published tokenizers;
llama.cpp has an adapted form of each under the name on the right (src/llama-vocab.cpp, vendored in llama-cpp-python
0.3.36). Where several of its names do the same, one stands for all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from quantizer.checkpoint.config import CheckpointError

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
            f"The tokenizer prepares text in a way that llama.cpp does not support "
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


_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORD = r"|[^\r\n\p{L}\p{N}]?\p{L}+"
_MARKS = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
_SPACES = r"|\s+(?!\S)|\s+"
_LLAMA_3 = f"{_CONTRACTIONS}{_WORD}" + r"|\p{N}{1,3}|" + _MARKS + _SPACES
_QWEN_2 = f"{_CONTRACTIONS}{_WORD}" + r"|\p{N}|" + _MARKS + _SPACES
_QWEN_3_5 = (
    _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+" + _SPACES
)
_SEED_CODER = f"{_CONTRACTIONS}{_WORD}" + r"|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+" + _SPACES
# OpenAI's own way to write it, with quantifiers that never give back
_POSSESSIVE = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|%s| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]" + _SPACES
_CL100K, _BAILING = _POSSESSIVE % r"\p{N}{1,3}", _POSSESSIVE % r"\p{N}"

_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = r"[^\r\n\p{L}\p{N}]?" + _UPPER + "*" + _LOWER + "+", r"[^\r\n\p{L}\p{N}]?" + _UPPER + "+" + _LOWER + "*"
_SLASHES = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+" + _SPACES
_O200K = f"{_CASED[0]}{_CONTRACTIONS}?|{_CASED[1]}{_CONTRACTIONS}?" + r"|\p{N}{1,3}" + _SLASHES
_TEKKEN = f"{_CASED[0]}|{_CASED[1]}" + r"|\p{N}" + _SLASHES

_KANA_AND_HAN = "[一-龥぀-ゟ゠-ヿ]+"
_HAN_AND_HANGUL = "[一-龥ࠀ-一가-퟿]+"
_DEEPSEEK_V3 = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_CASED_LETTERS = (
    r"[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-"
    r"Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄ"
    r"Ⰰ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+"
)
DEEPSEEK_V2_CUTS = ("[\r\n]", r"\s?" + _CASED_LETTERS, r"\s?[!-/:-~！-／：-～‘-‟　-。]+", r"\s+$", _HAN_AND_HANGUL)
_DEEPSEEK_CODER = ("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _HAN_AND_HANGUL, DIGITS)
_FALCON = ("punctuation, Contiguous", BYTE_LEVEL_SPLIT, "digits", "[0-9][0-9][0-9]")

# (cuts, ignore_merges) -> llama.cpp's name
_KNOWN: dict[tuple[tuple[str, ...], bool], str] = {
    ((_LLAMA_3,), True): "llama-bpe",
    ((_LLAMA_3,), False): "smaug-bpe",
    ((_CL100K,), True): "llama-bpe",
    ((_CL100K,), False): "smaug-bpe",
    ((_QWEN_2,), False): "qwen2",
    ((_QWEN_3_5,), False): "qwen35",
    ((_SEED_CODER,), False): "seed-coder",
    ((_BAILING,), False): "bailingmoe",
    ((BYTE_LEVEL_SPLIT,), False): "gpt-2",
    ((DIGITS, BYTE_LEVEL_SPLIT), False): "smollm",
    ((r"\p{N}", BYTE_LEVEL_SPLIT), False): "smollm",
    # "gpt-4o" would cut before combining marks; this name keeps whole words of the vocabulary, as OpenAI's library does
    ((_O200K,), False): "granite-embed-multi-97m",
    ((_O200K,), True): "granite-embed-multi-97m",
    ((_TEKKEN,), True): "tekken",
    ((r"\p{N}{1,3}", _KANA_AND_HAN, _DEEPSEEK_V3), False): "deepseek-v3",
    ((*DEEPSEEK_V2_CUTS, DIGITS), False): "deepseek-llm",
    (_DEEPSEEK_CODER, False): "deepseek-coder",
    (_FALCON, False): "falcon",
}


def pretokenizer_name(cuts: tuple[str, ...], ignore_merges: bool) -> str:
    """Return llama.cpp's name for a pre-tokenizer with these cuts. Raises CheckpointError that lists unknown ones."""
    name = _KNOWN.get((cuts, ignore_merges))
    if name is None:
        raise CheckpointError(
            f"The tokenizer splits text in a way that llama.cpp does not support (splits: {_shown(cuts)}; "
            f"ignore_merges: {str(ignore_merges).lower()}).",
            "Look for a GGUF of this model.",
        )
    return name
