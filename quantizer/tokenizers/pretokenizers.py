"""The llama.cpp pre-tokenizer that a tokenizer.json corresponds to, recognised by its steps and not by a hash of its
output.

Patterns are facts of the published tokenizers; llama.cpp has an adapted form of each under the name on the right
(src/llama-vocab.cpp, vendored in llama-cpp-python 0.3.36). Where several of its names do the same, one stands for all.
"""

from __future__ import annotations

from quantizer.errors import CheckpointError
from quantizer.tokenizers.steps import BYTE_LEVEL_SPLIT, DIGITS

__all__ = ["DEEPSEEK_V2_CUTS", "pretokenizer_name"]

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
DEEPSEEK_V2_CUTS = (
    "[\r\n]",
    r"\s?" + _CASED_LETTERS,
    r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
    r"\s+$",
    _HAN_AND_HANGUL,
)
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
    """Return llama.cpp's name for a pre-tokenizer with these cuts.

    Raises CheckpointError that prints the cuts when no entry of the table means the same.
    """
    name = _KNOWN.get((cuts, ignore_merges))
    if name is None:
        shown = "; ".join(cuts) or "none"
        raise CheckpointError(
            f"The tokenizer splits text in a way that llama.cpp has no name for (splits: {shown}; "
            f"ignore_merges: {str(ignore_merges).lower()}).",
            "Look for a GGUF of this model.",
        )
    return name
