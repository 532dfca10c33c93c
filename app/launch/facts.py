"""What the service knows of a model that an agent needs: its context, made longer where it can be, and its tools.

Owns the questions to the service. Independent of agents' commands.
"""

from __future__ import annotations

from app.client.service_client import ServiceClient
from app.launch.agents import Agent
from app.launch.first_prompts import N_SAMPLE_TOKENS, FirstPrompts, token_sample
from app.launch.plan import ModelFacts
from app.protocol.status import ModelStatus

_ANY_CONTEXT = 64  # the shortest that the service loads: whatever the model has will do


async def prepared_facts(
    client: ServiceClient, model: str, agent: Agent, prompts: FirstPrompts, n_ctx: int = 0
) -> ModelFacts:
    """Load `model` with the context that `agent` needs, or `n_ctx`, as far as that is possible, and return its facts.

    Raises the errors of loading.
    """
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

    Otherwise it will have a context of `n_ctx` tokens, where that is chosen.
    """
    if status is not None and status.n_ctx:
        n_ctx = status.n_ctx
    return ModelFacts(id=model, n_ctx=n_ctx, n_first_measured=prompts.of(model))
