"""The tokenizer of a loaded model: llama.cpp's, but for WordPiece vocabularies, where ours follows BERT's."""

from __future__ import annotations

from functools import cached_property

from app.engine.llama.native import lib, metadata_text, prompt_bytes, tokenize
from app.engine.wordpiece import WordPieceTokenizer, WordPieceVocabulary

_DEFAULT_UNKNOWN = 100  # BERT's, and llama.cpp's for files without one (src/llama-vocab.cpp in llama-cpp-python 0.3.36)


class LlamaTokenizer:
    """Tokenizes texts for `model`, which must outlive it."""

    def __init__(self, model: int) -> None:
        self._model = model
        self._vocab = lib.llama_model_get_vocab(model)
        self._is_wordpiece = lib.llama_vocab_type(self._vocab) == lib.LLAMA_VOCAB_TYPE_WPM

    def __call__(self, text: str, add_special: bool, parse_special: bool) -> list[int]:
        """Return the tokens of `text`. Raises RequestError for text that is not Unicode or above 16 MiB."""
        if not self._is_wordpiece:
            return tokenize(self._vocab, text, add_special, parse_special)
        prompt_bytes(text)  # for its errors
        return self._wordpiece(text, add_special, parse_special)

    @cached_property
    def _wordpiece(self) -> WordPieceTokenizer:
        """The vocabulary, read by the first text: 30,000 tokens take 20 ms."""
        vocab = self._vocab
        ids = range(lib.llama_vocab_n_tokens(vocab))
        tokens = [lib.llama_vocab_get_text(vocab, i).decode("utf-8", "replace") for i in ids]
        kinds = [lib.llama_vocab_get_attr(vocab, i) for i in ids]
        parsed = lib.LLAMA_TOKEN_ATTR_CONTROL | lib.LLAMA_TOKEN_ATTR_UNKNOWN
        is_lowercased = self._metadata("normalizer.lowercase") in ("", "true")
        return WordPieceTokenizer(
            WordPieceVocabulary(
                tokens=tokens,
                unknown=int(self._metadata("unknown_token_id") or _DEFAULT_UNKNOWN),
                begin=(lib.llama_vocab_bos(vocab),),
                end=(lib.llama_vocab_sep(vocab),),
                specials={tokens[i]: i for i in ids if kinds[i] & lib.LLAMA_TOKEN_ATTR_USER_DEFINED and tokens[i]},
                controls={tokens[i]: i for i in ids if kinds[i] & parsed and tokens[i]},
                is_lowercased=is_lowercased,
                strips_accents=(self._metadata("normalizer.strip_accents") or str(is_lowercased).lower()) == "true",
            )
        )

    def _metadata(self, name: str) -> str:
        return metadata_text(self._model, f"tokenizer.ggml.{name}") or ""
