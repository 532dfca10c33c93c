"""A context for embeddings, separate from the generating one but over the same weights.

Created at the first call. Independent of how long texts are split.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import ExitStack

import numpy as np

from app.engine.backend import Chunk, n_batch_with_logits
from app.engine.embedding import EmbedderFacts, Pooling, Vector
from app.engine.llama.context import Batch, LlamaAdapters
from app.engine.llama.devices import ggml_gpus
from app.engine.llama.native import lib, native_log
from app.engine.llama.rope_scaling import context_params
from app.engine.llama.tokenizer import LlamaTokenizer
from app.engine.messages import EngineConfig
from app.engine.tuning.tune_results import RuntimeSettings
from quantizer.system.errors import EngineError

DEFAULT_N_CTX = 2048
N_SEQUENCES = 64
_F32 = 0  # ggml's number of the type
_PLACE = re.compile(r"\{query\}|\{document\}")


class LlamaEmbedder:
    """An `Embedder` over loaded weights. Make one with `LlamaModel.embedder`, and close it before the model."""

    def __init__(
        self, model: int, config: EngineConfig, setting: RuntimeSettings, pooling: Pooling, adapters: LlamaAdapters
    ) -> None:
        """Create the context. Raises EngineError without memory for it."""
        self._owned = ExitStack()
        self._model = model
        self._vocab = lib.llama_model_get_vocab(model)
        self._tokenize = LlamaTokenizer(model)
        # Whether texts can be split shows only in a context, so one is made for that case first.
        self._context = self._open(_context_params(model, config, setting, pooling, can_split=True))
        has_encoder = lib.llama_model_has_encoder(model)
        self._compute = lib.llama_encode if has_encoder else lib.llama_decode
        has_memory = bool(lib.llama_get_memory(self._context)) and not has_encoder
        can_split = has_memory and lib.llama_get_causal_attn(self._context)
        if not can_split:
            self._owned.close()
            self._context = self._open(_context_params(model, config, setting, pooling, can_split=False))
        n_batch = lib.llama_n_batch(self._context)
        is_ranker = pooling is Pooling.RANK
        self.facts = EmbedderFacts(
            n_ctx=_n_ctx(model, config),
            n_batch=n_batch,
            n_sequences=lib.llama_n_seq_max(self._context),
            n_dimensions=lib.llama_model_n_cls_out(model) if is_ranker else lib.llama_model_n_embd_out(model),
            pooling=pooling,
            can_split=can_split,
        )
        self._batch = Batch(n_batch)
        adapters.attach(self._context)

    def pair(self, query: str, document: str) -> list[int]:
        """Return the tokens of both: in the model's rerank template, else with its separators. Source:
        format_prompt_rerank in llama.cpp tools/server/server-common.cpp as vendored in llama-cpp-python 0.3.36."""
        template = lib.llama_model_chat_template(self._model, b"rerank")
        if template:
            words = {"{query}": query, "{document}": document}
            text = _PLACE.sub(lambda place: words[place.group()], template.decode("utf-8", "replace"))
            return self._tokenize(text, add_special=False, parse_special=True)
        vocab = self._vocab
        bos, eos, sep = lib.llama_vocab_bos(vocab), lib.llama_vocab_eos(vocab), lib.llama_vocab_sep(vocab)
        end = sep if eos < 0 else eos
        before = [bos] if lib.llama_vocab_get_add_bos(vocab) and bos >= 0 else []
        after = [end] if lib.llama_vocab_get_add_eos(vocab) and end >= 0 else []
        between = [sep] if lib.llama_vocab_get_add_sep(vocab) and sep >= 0 else []
        first, second = (self._tokenize(text, add_special=False, parse_special=False) for text in (query, document))
        return [*before, *first, *after, *between, *second, *after]

    def compute(self, chunks: Sequence[Chunk]) -> Vector:
        status = self._compute(self._context, self._batch.fill(chunks))
        if status != 0:
            lib.llama_memory_clear(lib.llama_get_memory(self._context), False)
            cause = f"llama.cpp failed to compute embeddings (status {status}): {native_log().last_lines()}"
            raise EngineError(cause, "Load the model again.")
        pointers = [lib.llama_get_embeddings_seq(self._context, chunk.sequence_id) for chunk in chunks]
        if not all(pointers):
            raise EngineError("llama.cpp returned no embedding.", "Choose another embedding model.")
        return np.stack([np.ctypeslib.as_array(pointer, (self.facts.n_dimensions,)) for pointer in pointers])

    def set_threads(self, n_threads: int) -> None:
        lib.llama_set_n_threads(self._context, n_threads, n_threads)

    def forget(self, sequence_id: int) -> None:
        lib.llama_memory_seq_rm(lib.llama_get_memory(self._context), sequence_id, -1, -1)

    def close(self) -> None:
        self._owned.close()

    def _open(self, params: lib.llama_context_params) -> int:
        context: int | None = lib.llama_init_from_model(self._model, params)
        if not context:
            cause = f"llama.cpp cannot make a context for embeddings: {native_log().last_lines()}"
            raise EngineError(cause, "Use a smaller --ctx, or a smaller model.")
        self._owned.callback(lib.llama_free, context)
        return context


def _n_ctx(model: int, config: EngineConfig) -> int:
    """Return the longest text in tokens: at most the trained context, beyond which some models crash the process."""
    n_ctx_train: int = lib.llama_model_n_ctx_train(model)
    return min(config.n_ctx or DEFAULT_N_CTX, n_ctx_train)


def _context_params(
    model: int, config: EngineConfig, setting: RuntimeSettings, pooling: Pooling, *, can_split: bool
) -> lib.llama_context_params:
    """Return the parameters of a context for one text of full length and a batch of others. A text that cannot be split
    must fit one ubatch."""
    n_ctx = _n_ctx(model, config)
    n_vocab = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(model))
    n_batch = n_batch_with_logits(n_vocab) if can_split else n_ctx
    params = context_params(model)
    params.n_ctx = n_ctx + n_batch if can_split else n_ctx
    params.n_batch = params.n_ubatch = n_batch
    params.n_seq_max = min(N_SEQUENCES, n_batch)  # llama.cpp aborts if sequences outnumber the outputs of a batch
    params.n_threads = params.n_threads_batch = setting.n_threads
    params.kv_unified = True
    if not config.uses_gpu or next(ggml_gpus(), None) is None:
        # In halves, what a text attends to is rounded by its place in the batch: five equal texts had cosines of
        # 0.9999975 to each other (SmolLM2 135M), in single precision 1 - 2e-15. GPUs have fast kernels for halves only.
        params.type_k = params.type_v = _F32
    params.embeddings = True
    params.no_perf = True
    params.pooling_type = int(pooling)
    is_fused = setting.flash_attention
    params.flash_attn_type = lib.LLAMA_FLASH_ATTN_TYPE_AUTO if is_fused else lib.LLAMA_FLASH_ATTN_TYPE_DISABLED
    return params
