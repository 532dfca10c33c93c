"""What do bound tool calls cost while a model writes? Free text against the same with tools, in turns.

Run: `uv run python tests/bench/engine/tool_call_speed.py MODEL.gguf [--pairs 9] [--tokens 64]`. Each pair runs free
text, then text with 60 tools offered of which none is called, then the text of an argument within a call, each alone,
with one thread; printed are the medians of processor time a token, and the median of the pairs' ratios: the machine may
be busy.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from pathlib import Path

from rich.table import Table

from app.common.answer_text import NO_REASONING
from app.engine.grammar.call_rules import CallRules
from app.engine.llama import LlamaModel, model
from app.engine.loop.core import Engine
from app.engine.messages import EngineConfig, Failed, Finished, Output
from app.engine.request import Request, SamplingParams
from app.engine.tuning.tune_results import RuntimeSettings
from app.protocol.chat import Tool
from app.service.tools.call_grammar import bound_calls
from app.service.tools.parser import ToolCalling, ToolOptions
from offload.placement.load_parameters import ON_HOST
from tests.app.call_texts import family
from tests.battery.clients.tool_calls import WillingModel
from tests.battery.clients.tool_schemas import TOOLS
from tests.bench.report import show

_KINDS = ("free text", "tools offered", "within a call")
_BEGIN = '<tool_call>\n{"name": "write_file", "arguments": {"path": "a", "content": "'


def rules() -> CallRules:
    tools = tuple(Tool(name, "", schema) for name, schema in TOOLS.items())
    return bound_calls(ToolCalling(family("hermes"), ToolOptions(tools=tools)), NO_REASONING).rules


def token_s(backend: WillingModel, kind: str, n_tokens: int, seed: int, calls: CallRules) -> float:
    """Return the seconds of processor time for each token of an answer after its first ones."""
    begin = _BEGIN if kind == "within a call" else ""
    backend.begins = {seed: begin}
    sampling = SamplingParams(seed=seed, calls=None if kind == "free text" else calls)
    n_begin = len(backend.tokenize(begin, False, True)) if begin else 1
    begun: list[float] = []

    def take(event: Output | Finished | Failed) -> None:
        assert not isinstance(event, Failed), event
        if isinstance(event, Output) and event.n_tokens >= n_begin and len(begun) < 2:
            begun[:] = begun or [time.process_time(), float(event.n_tokens)]

    engine = Engine(backend, take)
    engine.submit(
        Request(
            request_id="a",
            prompt=f"{random.Random(seed).random()} Write a file.\n",
            sampling=sampling,
            max_tokens=n_begin + n_tokens,
            ignore_eos=True,
            max_draft_tokens=0,
        )
    )
    while not engine.is_idle:
        engine.step()
    ended_s = time.process_time()
    engine.close()
    for sequence_id in range(backend.facts.n_seq_max):
        backend.truncate(sequence_id, 0)
    return (ended_s - begun[0]) / (n_begin + n_tokens - begun[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--tokens", type=int, default=64)
    options = parser.parse_args()
    model.LlamaBackend = WillingModel  # type: ignore[misc]
    loaded = LlamaModel(options.model, ON_HOST, False, lambda _fraction: True)
    backend = loaded.context(EngineConfig(n_ctx=1024, n_sequences=1), RuntimeSettings(1, True, True))
    assert isinstance(backend, WillingModel)
    calls = rules()
    for kind in _KINDS:
        token_s(backend, kind, 8, 10_000, calls)  # what is made once
    pairs = [
        {kind: token_s(backend, kind, options.tokens, seed, calls) for kind in _KINDS} for seed in range(options.pairs)
    ]
    made = Table("", "ms of processor a token", "against free text", box=None, pad_edge=False)
    for kind in _KINDS:
        median_s = statistics.median(pair[kind] for pair in pairs)
        ratio = statistics.median(pair[kind] / pair[_KINDS[0]] for pair in pairs)
        made.add_row(kind, f"{1000 * median_s:.3f}", f"{ratio - 1:+.1%}")
    show(made)
    backend.close()
    loaded.close()


if __name__ == "__main__":
    main()
