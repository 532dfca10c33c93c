"""What a launch knows of a model: its context, made longer where it can be, its tools, and the first prompt it gets.

First prompts that runs have measured are in `<cache>/first_prompts.json`, which may be deleted at any time.
"""

from __future__ import annotations

import json
from pathlib import Path

from app.client.service_client import ServiceClient
from app.launch.agents import Agent
from app.launch.plan import ModelFacts
from app.protocol.status import ModelStatus
from quantizer.system.files import read_regular, write_cache

N_SAMPLE_TOKENS = 569  # of the sample, with the tokenizer of Qwen 2 and 3.5
_MOST_KEPT = 200


def token_sample() -> str:
    """Return a text such as agents send: rules, facts, tools as JSON schemas, code."""
    return (Path(__file__).parent / "token_sample.txt").read_text(encoding="utf-8")


class FirstPrompts:
    """The first prompts that `agent`, a name with a version, was measured with, by model; a file in `cache_dir`. A file
    that is damaged counts as empty."""

    def __init__(self, cache_dir: Path, agent: str) -> None:
        self._path = cache_dir / "first_prompts.json"
        self._agent = agent

    def of(self, model: str) -> int:
        """Return the tokens of the longest one, 0 without any: in a terminal an agent may have more tools."""
        return self._read().get(self._key(model), 0)

    def record(self, model: str, n_tokens: int) -> None:
        """Store a measurement, if the file can be written; the oldest are dropped."""
        known = self._read()
        n_before = known.pop(self._key(model), 0)
        known[self._key(model)] = max(n_before, n_tokens)
        kept = dict(list(known.items())[-_MOST_KEPT:])
        write_cache(self._path, json.dumps(kept, indent=1))

    def _key(self, model: str) -> str:
        return f"{self._agent} {model}"

    def _read(self) -> dict[str, int]:
        try:
            data = json.loads(read_regular(self._path))
        except (OSError, ValueError, RecursionError):
            return {}
        if not isinstance(data, dict):
            return {}
        return {str(name): n for name, n in data.items() if type(n) is int and n > 0}


_ANY_CONTEXT = 64  # the shortest that the service loads: whatever the model has will do


async def prepared_facts(
    client: ServiceClient, model: str, agent: Agent, prompts: FirstPrompts, n_ctx: int = 0
) -> ModelFacts:
    """Load `model` with the context that `agent` needs, or `n_ctx`, as far as that is possible, and return its facts.
    Raises the errors of loading."""
    n_wanted = n_ctx or (agent.need.n_ctx if agent.need else _ANY_CONTEXT)
    context = await client.lengthen_context(model, n_wanted)
    takes_tools = await client.takes_tools(model)
    n_tokens = await client.count_tokens(token_sample(), model)
    return ModelFacts(
        id=model,
        n_ctx=context.n_ctx,
        n_ctx_train=context.n_ctx_train,
        context_reason=context.reason,
        has_template=takes_tools is not None,
        takes_tools=takes_tools,
        token_ratio=n_tokens / N_SAMPLE_TOKENS,
        n_first_measured=prompts.of(model),
    )


def known_facts(model: str, status: ModelStatus | None, prompts: FirstPrompts, n_ctx: int = 0) -> ModelFacts:
    """Return what is known of `model` without loading it; `status` is that of a running service, if one has it.
    Otherwise it will have a context of `n_ctx` tokens, where that is chosen."""
    if status is not None and status.n_ctx:
        n_ctx = status.n_ctx
    return ModelFacts(id=model, n_ctx=n_ctx, n_first_measured=prompts.of(model))
