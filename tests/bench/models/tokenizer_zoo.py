"""Small tokenizers of every kind and pre-tokenizer, trained on the spot as published ones are built.

Each builder writes a checkpoint folder without weights and returns what the original library makes of a text. Patterns
are those of the published tokenizer.json files. Knows nothing of GGUF.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from quantizer.tokenizers.pretokenizers import DEEPSEEK_V2_CUTS
from quantizer.tokenizers.sentencepiece_model import read_piece_model
from tests.bench.models.tricky_texts import tricky_texts

__all__ = ["ZOO", "Encode", "Resident"]

Encode = Callable[[str], list[int]]
_N_TOKENS = 2_000
_CORPUS = Path(__file__).parents[3] / "assets" / "guide"
# what stands for something else in a vocabulary cannot be a word of it
_NOT_LEARNT = ("\0", "<|", "<s>", "</s>", "<unk>", "<0x", "[CLS]", "[PAD", "<think>", "##", "▁")
_BYTES = [f"<0x{byte:02X}>" for byte in range(256)]

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_SLASH_TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_WORD = r"|[^\r\n\p{L}\p{N}]?\p{L}+"
_LLAMA_3 = _CONTRACTIONS + _WORD + r"|\p{N}{1,3}" + _TAIL
_QWEN_2 = _CONTRACTIONS + _WORD + r"|\p{N}" + _TAIL
_QWEN_3_5 = (
    _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_CL100K = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
)
_SEED = _CONTRACTIONS + _WORD + r"|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_MIXED, _CAPITAL = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+", rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
_O200K = rf"{_MIXED}{_CONTRACTIONS}?|{_CAPITAL}{_CONTRACTIONS}?" + r"|\p{N}{1,3}" + _SLASH_TAIL
_TEKKEN = rf"{_MIXED}|{_CAPITAL}" + r"|\p{N}" + _SLASH_TAIL
_DEEPSEEK_V3 = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_HAN_AND_HANGUL = "[一-龥ࠀ-一가-퟿]+"


@dataclass(frozen=True, slots=True)
class Resident:
    """One tokenizer: `build` fills a folder; `expects` is the name that llama.cpp should be told."""

    name: str
    expects: str
    build: Callable[[Path], Encode]


@dataclass(frozen=True, slots=True)
class _ByteLevel:
    """A byte-level BPE as a recipe: cuts before the bytes, and what else its family has."""

    cuts: tuple[Any, ...] = ()
    uses_regex: bool = False
    normalizer: Any = None
    ignores_merges: bool = False
    specials: tuple[str, ...] = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
    settings: dict[str, Any] = field(default_factory=lambda: {"eos_token": "<|im_end|>"})

    def __call__(self, folder: Path) -> Encode:
        tokenizer = Tokenizer(models.BPE(ignore_merges=self.ignores_merges))
        bytes_step = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=self.uses_regex)
        tokenizer.pre_tokenizer = (
            pre_tokenizers.Sequence([*self.cuts[:1], bytes_step, *self.cuts[1:]])
            if (self.uses_regex)
            else pre_tokenizers.Sequence([*self.cuts, bytes_step])
        )
        tokenizer.decoder = decoders.ByteLevel()
        if self.normalizer is not None:
            tokenizer.normalizer = self.normalizer
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(vocab_size=_N_TOKENS, initial_alphabet=alphabet, show_progress=False)
        tokenizer.train_from_iterator(_texts(), trainer)
        return _saved(tokenizer, folder, self.specials, ("<think>",), self.settings)


def _split(pattern: str, behavior: str = "isolated", invert: bool = False) -> Any:
    return pre_tokenizers.Split(Regex(pattern), behavior, invert)


def _sentence_bpe(normalizer: Any, pre_tokenizer: Any, *, with_all_merges: bool) -> Callable[[Path], Encode]:
    """A BPE over text with byte fallback, as converted from SentencePiece or as its trainer leaves it."""

    def build(folder: Path) -> Encode:
        tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
        if normalizer is not None:
            tokenizer.normalizer = normalizer
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
        first = ["<unk>", "<s>", "</s>", *_BYTES]
        trainer = trainers.BpeTrainer(vocab_size=_N_TOKENS, special_tokens=first, show_progress=False)
        tokenizer.train_from_iterator(_texts(), trainer)
        parsed = json.loads(tokenizer.to_str())
        parsed["added_tokens"] = [entry for entry in parsed["added_tokens"] if entry["content"] not in _BYTES]
        if with_all_merges:
            parsed["model"]["merges"] = _all_merges(parsed["model"]["vocab"])
        tokenizer = Tokenizer.from_str(json.dumps(parsed))
        tokenizer.pre_tokenizer = pre_tokenizer
        frame = [("<s>", 1)]
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A", pair="<s> $A $B", special_tokens=frame
        )
        names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
        return _saved(tokenizer, folder, ("<|im_end|>",), (), names)

    return build


def _all_merges(vocab: dict[str, int]) -> list[list[str]]:
    """Every way to make a token of two, tokens in order of id: what converting SentencePiece yields."""
    merges = []
    for token in sorted(vocab, key=vocab.__getitem__):
        ways = [(token[:i], token[i:]) for i in range(1, len(token))]
        known = sorted(
            (vocab[left], vocab[right], left, right) for left, right in ways if {left, right} <= vocab.keys()
        )
        merges += [[left, right] for _, _, left, right in known]
    return merges


def _unigram(rewriting: tuple[Any, ...], pre_tokenizer: Any, frame: str) -> Callable[[Path], Encode]:
    """A unigram model; a name among the steps of rewriting stands for SentencePiece's map of characters."""

    def build(folder: Path) -> Encode:
        tokenizer = Tokenizer(models.Unigram())
        if rewriting:
            steps = [_charsmap(step, folder) if isinstance(step, str) else step for step in rewriting]
            tokenizer.normalizer = normalizers.Sequence(steps) if len(steps) > 1 else steps[0]
        tokenizer.pre_tokenizer = pre_tokenizer
        specials = ["<pad>", "</s>", "<unk>", "<s>"]
        trainer = trainers.UnigramTrainer(
            vocab_size=_N_TOKENS, special_tokens=specials, unk_token="<unk>", show_progress=False
        )
        tokenizer.train_from_iterator(_texts(), trainer)
        ends = [("</s>", tokenizer.token_to_id("</s>")), ("<s>", tokenizer.token_to_id("<s>"))]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=frame, pair=f"{frame} $B:1 </s>", special_tokens=ends
        )
        names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
        return _saved(tokenizer, folder, (), (), names)

    return build


def _wordpiece(lowercase: bool) -> Callable[[Path], Encode]:
    def build(folder: Path) -> Encode:
        tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        trainer = trainers.WordPieceTrainer(vocab_size=_N_TOKENS, special_tokens=specials, show_progress=False)
        tokenizer.train_from_iterator(_texts(), trainer)
        ends = [(name, tokenizer.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
        tokenizer.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=ends
        )
        names = {f"{name.strip('[]').lower()}_token": name for name in specials}
        return _saved(tokenizer, folder, (), (), names)

    return build


def _piece_model(model_type: str, **options: Any) -> Callable[[Path], Encode]:
    """A tokenizer.model alone, made and judged by SentencePiece itself."""

    def build(folder: Path) -> Encode:
        import sentencepiece

        folder.mkdir(parents=True)
        (folder / "corpus.txt").write_text("\n".join(_texts()), encoding="utf-8")
        sentencepiece.SentencePieceTrainer.train(
            input=str(folder / "corpus.txt"),
            model_prefix=str(folder / "tokenizer"),
            model_type=model_type,
            vocab_size=_N_TOKENS,
            hard_vocab_limit=False,
            minloglevel=2,
            **options,
        )
        (folder / "corpus.txt").unlink()
        processor = sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
        return lambda text: list(processor.encode(text))

    return build


def _charsmap(rule: str, folder: Path) -> Any:
    """SentencePiece's map of characters of this name, taken from a model trained with it."""
    scratch = folder.with_suffix(".map")
    _piece_model("unigram", normalization_rule_name=rule)(scratch)
    return normalizers.Precompiled(read_piece_model(scratch / "tokenizer.model").charsmap)


def _saved(
    tokenizer: Any, folder: Path, specials: tuple[str, ...], words: tuple[str, ...], settings: dict[str, Any]
) -> Encode:
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in specials])
    tokenizer.add_tokens([AddedToken(word, special=False, normalized=False) for word in words])
    folder.mkdir(parents=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return lambda text: list(tokenizer.encode(text, add_special_tokens=True).ids)


def _texts() -> Iterator[str]:
    """RandomText and code of this project, and tricky texts of another seed."""
    for path in sorted(_CORPUS.glob("*.py")):
        yield from path.read_text(encoding="utf-8").splitlines(keepends=True)
    for seed in range(30):
        yield from (text for text in tricky_texts(seed) if not any(name in text for name in _NOT_LEARNT))


_DIGITS = pre_tokenizers.Digits(individual_digits=True)
_NFC = normalizers.NFC()
_SPACES = normalizers.Replace(" ", "▁")
_ALWAYS = pre_tokenizers.Metaspace(prepend_scheme="always")
_WORDS = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), _ALWAYS])
_ONE_SPACE = (normalizers.Strip(left=False, right=True), normalizers.Replace(Regex(" {2,}"), "▁"))
_KEEPING = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False}

ZOO = (
    Resident("Llama 3", "llama-bpe", _ByteLevel((_split(_LLAMA_3),), ignores_merges=True)),
    Resident("Llama 3 splits, merges kept (GLM-4, SmolLM3)", "smaug-bpe", _ByteLevel((_split(_LLAMA_3),))),
    Resident("cl100k, removed inverted (Phi-4, OLMo2)", "smaug-bpe", _ByteLevel((_split(_CL100K, "removed", True),))),
    Resident("Qwen2, Qwen3, StableLM 2", "qwen2", _ByteLevel((_split(_QWEN_2),), normalizer=_NFC)),
    Resident("Qwen3.5", "qwen35", _ByteLevel((_split(_QWEN_3_5),), normalizer=_NFC)),
    Resident("GPT-2, MPT, StableLM", "gpt-2", _ByteLevel(uses_regex=True)),
    Resident("StarCoder2, Granite, Command-R, SmolLM", "smollm", _ByteLevel((_DIGITS,), uses_regex=True)),
    Resident("o200k (GPT-OSS, Phi-4-mini)", "granite-embed-multi-97m", _ByteLevel((_split(_O200K),))),
    Resident("o200k, words kept whole", "granite-embed-multi-97m", _ByteLevel((_split(_O200K),), ignores_merges=True)),
    Resident("Tekken (Mistral Nemo, Ministral)", "tekken", _ByteLevel((_split(_TEKKEN),), ignores_merges=True)),
    Resident(
        "DeepSeek-V3",
        "deepseek-v3",
        _ByteLevel((_split(r"\p{N}{1,3}"), _split("[一-龥぀-ゟ゠-ヿ]+"), _split(_DEEPSEEK_V3))),
    ),
    Resident("DeepSeek-V2", "deepseek-llm", _ByteLevel((*map(_split, DEEPSEEK_V2_CUTS), _DIGITS))),
    Resident(
        "DeepSeek-Coder",
        "deepseek-coder",
        _ByteLevel((*map(_split, ("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _HAN_AND_HANGUL)), _DIGITS)),
    ),
    Resident(
        "Falcon",
        "falcon",
        _ByteLevel(
            (
                pre_tokenizers.Punctuation("contiguous"),
                pre_tokenizers.Digits(individual_digits=False),
                _split("[0-9][0-9][0-9]"),
            ),
            uses_regex=True,
        ),
    ),
    Resident("Seed-Coder", "seed-coder", _ByteLevel((_split(_SEED),))),
    Resident("Ling", "bailingmoe", _ByteLevel((_split(_CL100K.replace("{1,3}", "")),))),
    Resident(
        "Llama 2 (tokenizer.json)",
        "llama",
        _sentence_bpe(normalizers.Sequence([normalizers.Prepend("▁"), _SPACES]), None, with_all_merges=True),
    ),
    Resident(
        "Llama 2 as transformers 5 saves it",
        "llama",
        _sentence_bpe(None, pre_tokenizers.Metaspace(prepend_scheme="first", split=False), with_all_merges=True),
    ),
    Resident(
        "Gemma (tokenizer.json)",
        "llama",
        _sentence_bpe(_SPACES, pre_tokenizers.Split(" ", "merged_with_previous"), with_all_merges=True),
    ),
    Resident(
        "byte-fallback BPE with one merge a token",
        "llama",
        _sentence_bpe(None, pre_tokenizers.Metaspace(prepend_scheme="first", split=False), with_all_merges=False),
    ),
    Resident("T5 (tokenizer.json)", "t5", _unigram(("nmt_nfkc",), _WORDS, "$A </s>")),
    Resident("XLM-R (tokenizer.json)", "t5", _unigram(("nmt_nfkc",), _WORDS, "<s> $A </s>")),
    Resident("T5, converted by transformers 4", "t5", _unigram(("nmt_nfkc", *_ONE_SPACE), _ALWAYS, "$A </s>")),
    Resident("unigram, spaces kept", "t5", _unigram((), _ALWAYS, "$A </s>")),
    Resident("BERT uncased", "bert", _wordpiece(lowercase=True)),
    Resident("BERT cased", "bert", _wordpiece(lowercase=False)),
    Resident("tokenizer.model, BPE", "llama", _piece_model("bpe", byte_fallback=True, **_KEEPING)),
    Resident(
        "tokenizer.model, BPE, no prefix (Gemma)",
        "llama",
        _piece_model("bpe", byte_fallback=True, add_dummy_prefix=False, user_defined_symbols=["▁▁", "▁▁▁"], **_KEEPING),
    ),
    Resident("tokenizer.model, unigram, NFKC (T5)", "t5", _piece_model("unigram", normalization_rule_name="nmt_nfkc")),
    Resident("tokenizer.model, unigram, spaces kept", "t5", _piece_model("unigram", **_KEEPING)),
)
