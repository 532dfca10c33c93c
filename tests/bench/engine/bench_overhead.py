"""The overhead of the engine over llama.cpp itself: the same greedy tokens from Engine and from a bare loop of C calls.

Run: `uv run python tests/bench/engine/bench_overhead.py MODEL.gguf`. Both use one loaded model and one context in this
process by turns. No answer ends before its last token, and no draft is ever verified: the engine looks for one with
costs at which none pays. Repacked weights end the process on some machines, so they are only used with --repack.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import llama_cpp.llama_cpp as lib

from app.bench.workloads import RandomText
from app.engine.llama import LlamaBackend, LlamaModel
from app.engine.loop.core import Engine, Event
from app.engine.messages import EngineConfig, Failed, Finished, Output
from app.engine.request import Request, SamplingParams
from app.engine.speculative.cost_model import StepCost
from app.engine.tuning.tune_results import RuntimeSettings
from offload.devices.host import default_threads
from offload.placement.load_parameters import ON_HOST
from quantizer.gguf.validation import validate_gguf

__all__ = ["Decoded"]

_NO_DRAFT_PAYS = {1: 1.0, 2: 1e6}
_PROMPT_WORDS = 48


@dataclass(frozen=True, slots=True)
class Decoded:
    """A greedy answer and the seconds from its first to its last token."""

    text: str
    n_tokens: int
    decode_s: float

    @property
    def rate(self) -> float:
        """Tokens a second."""
        return (self.n_tokens - 1) / self.decode_s


def raw_decode(backend: LlamaBackend, prompt: list[int], n_tokens: int) -> Decoded:
    """Decode with llama_decode and llama_sampler_sample alone, in an empty context."""
    context = backend._context
    _clear(backend)
    chain = lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())
    ends = [token for token in range(backend.facts.n_vocab) if backend.is_eog(token)]
    banned = (lib.llama_logit_bias * len(ends))(*(lib.llama_logit_bias(token, float("-inf")) for token in ends))
    lib.llama_sampler_chain_add(chain, lib.llama_sampler_init_logit_bias(backend.facts.n_vocab, len(ends), banned))
    lib.llama_sampler_chain_add(chain, lib.llama_sampler_init_greedy())
    native_prompt = (lib.llama_token * len(prompt))(*prompt)
    lib.llama_decode(context, lib.llama_batch_get_one(native_prompt, len(prompt)))
    tokens = [lib.llama_sampler_sample(chain, context, -1)]
    newest = (lib.llama_token * 1)(tokens[0])
    batch = lib.llama_batch_get_one(newest, 1)
    begun_s = time.perf_counter()
    while len(tokens) < n_tokens:
        lib.llama_decode(context, batch)
        newest[0] = lib.llama_sampler_sample(chain, context, -1)
        tokens.append(newest[0])
    decode_s = time.perf_counter() - begun_s
    lib.llama_sampler_free(chain)
    text = b"".join(map(backend.piece, tokens))
    return Decoded(text.decode("utf-8", "replace"), len(tokens), decode_s)


def engine_decode(backend: LlamaBackend, prompt: list[int], n_tokens: int) -> Decoded:
    """Decode with an Engine of its own, as a worker drives it, in an empty context."""
    events: list[Event] = []
    _clear(backend)
    engine = Engine(backend, events.append, step_cost=StepCost(dict(_NO_DRAFT_PAYS)))
    greedy = SamplingParams(temperature=0.0)
    engine.submit(
        Request(request_id="bench", prompt=tuple(prompt), sampling=greedy, max_tokens=n_tokens, ignore_eos=True)
    )
    begun_s = 0.0
    while not engine.is_idle:
        engine.step()
        if not begun_s and events:
            begun_s = time.perf_counter()
    decode_s = time.perf_counter() - begun_s
    engine.close()
    failed = [event for event in events if isinstance(event, Failed)]
    if failed:
        sys.exit(f"{failed[0].error.error()}")
    (finished,) = (event for event in events if isinstance(event, Finished))
    assert finished.usage.n_drafted_tokens == 0, "the cost table rules drafts out"
    text = "".join(event.text for event in events if isinstance(event, Output))
    return Decoded(text, finished.usage.n_output_tokens, decode_s)


def _clear(backend: LlamaBackend) -> None:
    lib.llama_memory_clear(lib.llama_get_memory(backend._context), False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--tokens", type=int, default=128, help="tokens of each answer (128)")
    parser.add_argument("--runs", type=int, default=5, help="runs of each, in turns; the median counts (5)")
    parser.add_argument("--threads", type=int, default=default_threads())
    parser.add_argument("--flash", action="store_true", help="use fused attention")
    parser.add_argument("--repack", action="store_true", help="use llama.cpp's extra buffer types")
    options = parser.parse_args()
    validate_gguf(options.model)
    setting = RuntimeSettings(options.threads, options.flash, options.repack)
    model = LlamaModel(options.model, ON_HOST, setting.extra_buffers, lambda _fraction: True)
    backend = model.context(EngineConfig(n_ctx=options.tokens + 1024, n_sequences=1), setting)
    prompt = backend.tokenize(RandomText(seed=0).words(_PROMPT_WORDS), add_special=True, parse_special=False)
    raw_decode(backend, prompt, 8)  # the first run reads the weights from disk
    pairs = [
        (raw_decode(backend, prompt, options.tokens), engine_decode(backend, prompt, options.tokens))
        for _ in range(options.runs)
    ]
    backend.close()
    model.close()
    report(pairs)


def report(pairs: list[tuple[Decoded, Decoded]]) -> None:
    """Print both rates, the engine's overhead a token and its share; say so when the texts differ."""
    raw, engine = (median(run.rate for run in runs) for runs in zip(*pairs, strict=True))
    added_ms = 1000 / engine - 1000 / raw
    print(f"raw loop {raw:.2f} tok/s, engine {engine:.2f} tok/s: {added_ms:+.3f} ms a token, {raw / engine - 1:+.1%}")
    n_same = sum(ours.text == bare.text for bare, ours in pairs)
    print(f"{pairs[0][0].n_tokens} tokens each, the same text in {n_same} of {len(pairs)} runs")


if __name__ == "__main__":
    main()
