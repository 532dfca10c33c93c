"""The plan of a launch: the command with its variables and files, and what was checked of the model before.

Owns the decisions. Pure: reads nothing and starts nothing; the key of the run is no part of a plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Literal

from app.launch.agents import AGENTS, Agent, ContextNeed, Target, TargetModel

_ROUNDED_TO = -2  # an estimate is as exact as hundreds of tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """What is known of the model that an agent will use. `n_ctx` and `n_ctx_train` are in tokens, 0 where unknown;
    `context_reason` says why the context is no longer. `takes_tools` says whether the chat template has tools; it is
    None where that is unknown. `token_ratio` is how many tokens this model's tokenizer makes of one of Qwen's.
    `n_first_measured` is the longest first prompt of a run."""

    id: str
    n_ctx: int = 0
    n_ctx_train: int = 0
    context_reason: str = ""
    has_template: bool = True
    takes_tools: bool | None = None
    token_ratio: float = 1.0
    n_first_measured: int = 0


@dataclass(frozen=True, slots=True)
class FirstPrompt:
    """The tokens with which a session begins, and how they are known."""

    n_tokens: int
    source: str


@dataclass(frozen=True, slots=True)
class SmallModel:
    """The second model, for an agent's small tasks; None where the main one does them. `reason` names the one that does
    them and says why it is that one, as the end of a sentence."""

    model: TargetModel | None
    reason: str


@dataclass(frozen=True, slots=True)
class Check:
    """Something that was checked. A "refusal" cannot work, a "warning" may; "unknown" is checked in a real launch."""

    verdict: Literal["ok", "warning", "refusal", "unknown"]
    text: str
    remedy: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchPlan:
    """The command of an agent, its variables and those that it does not inherit, the files of its run, and the checks.
    `app.launch.agents.KEY` and `FOLDER` stand for what only the run knows."""

    agent: Agent
    target: Target
    command: tuple[str, ...]
    environment: Mapping[str, str]
    removed: tuple[str, ...]
    files: Mapping[str, str]
    checks: tuple[Check, ...]

    def of(self, verdict: str) -> tuple[Check, ...]:
        return tuple(check for check in self.checks if check.verdict == verdict)


def plan_launch(
    agent: Agent,
    path: str,
    url: str,
    facts: ModelFacts,
    arguments: Sequence[str] = (),
    *,
    version: str = "",
    small: SmallModel | None = None,
) -> LaunchPlan:
    """Return how `agent`, whose command is at `path`, is started with `arguments` against the service at `url`. Its
    `version` is empty where it is unknown; `small` does its small tasks, None where nobody looked for one."""
    n_ctx = facts.n_ctx or (agent.need.n_ctx if agent.need else 0)
    target = Target(url, TargetModel(facts.id, n_ctx), small.model if small else None)
    start = agent.start(target)
    return LaunchPlan(
        agent=agent,
        target=target,
        command=(path, *start.arguments, *(arguments or agent.default_arguments)),
        environment=start.environment,
        removed=start.removed,
        files=start.files,
        checks=(*_checks(agent, facts, version), *_small_checks(agent, small)),
    )


def first_prompt(agent: Agent, facts: ModelFacts) -> FirstPrompt | None:
    """Return the first prompt of `agent` in tokens of this model, None where nobody has counted it."""
    if facts.n_first_measured:
        return FirstPrompt(facts.n_first_measured, "measured in a run with this model")
    if agent.need is None or not agent.need.n_first:
        return None
    n_tokens = round(round(agent.need.n_first * facts.token_ratio), _ROUNDED_TO)
    ratio = f"; this model's makes {facts.token_ratio:.2f} of each" if abs(facts.token_ratio - 1) >= 0.005 else ""
    return FirstPrompt(n_tokens, f"{agent.need.n_first:,} counted with Qwen's tokenizer{ratio}")


def _checks(agent: Agent, facts: ModelFacts, version: str) -> Iterator[Check]:
    if version and _parts(version) < _parts(agent.least_version):
        cause = f"{agent.title} {version} is older than {agent.least_version}, the first that reads these settings."
        yield Check("warning", cause, f"Update it: `{agent.install}`.")
    if not agent.tested and agent.source:
        yield Check("unknown", f"{agent.title} was never run here: its settings are from its code, {agent.source}.")
    if not facts.has_template:
        cause = f"{facts.id} has no chat template: it continues text and cannot follow an agent."
        yield Check("refusal", cause, "Use an instruction-tuned model; `localllm recommend` has some.")
    elif agent.needs_tools:
        yield _tools_check(agent, facts)
    if agent.need is not None or facts.n_first_measured:
        yield _context_check(agent, facts)


def _small_checks(agent: Agent, small: SmallModel | None) -> Iterator[Check]:
    if small is not None and agent.small_tasks is not None:
        yield Check("ok", f"Small tasks ({agent.small_tasks.what}) go to {small.reason.rstrip('.')}.")


def _parts(version: str) -> tuple[int, ...]:
    """Return the numbers of a version, as far as it has only these."""
    return tuple(int(part) for part in takewhile(str.isdecimal, version.split(".")))


def _tools_check(agent: Agent, facts: ModelFacts) -> Check:
    if facts.takes_tools is None:
        return Check("unknown", "Whether the model takes tools is checked once it is loaded.")
    if facts.takes_tools:
        return Check("ok", f"The chat template of {facts.id} takes tools.")
    cause = f"The chat template of {facts.id} has no tools: localllm describes them in the prompt instead"
    trained = "a model that was not trained for them seldom calls well"
    return Check("warning", f"{cause}, and {trained}.", f"Use another model for {agent.title}: `localllm recommend`.")


def _context_check(agent: Agent, facts: ModelFacts) -> Check:
    prompt, need = first_prompt(agent, facts), agent.need or ContextNeed(0, 0)
    begins, n_least = f"The first prompt of {agent.title} was not counted", need.n_least
    if prompt is not None:
        begins = f"{agent.title} begins a session with about {prompt.n_tokens:,} tokens ({prompt.source})"
        n_least = max(n_least, prompt.n_tokens + need.n_free + 1)
    begins += f" and keeps {need.n_free:,} free" if need.n_free else ""
    begins += f"; it refuses less than {need.n_least:,} tokens of context" if need.n_least else ""
    if not facts.n_ctx:
        return Check("unknown", f"{begins}; the model's context is checked once it is loaded.")
    n_wanted = need.n_ctx or n_least
    has = f"{facts.id} has {facts.n_ctx:,} tokens of context"
    if facts.n_ctx >= max(n_wanted, n_least):
        return Check("ok", f"{begins}; {has}.")
    because = f", because {facts.context_reason}" if facts.context_reason else ""
    if facts.n_ctx_train and facts.n_ctx_train < n_wanted:
        remedy = f"Use a model that was trained on {n_wanted:,} tokens."
    elif "--ctx" in facts.context_reason:
        remedy = f"Start it with --ctx {n_wanted}."
    else:
        remedy = "Use --kv-type q8_0, which halves the memory of the context, or a smaller model."
    others = [other.name for other in AGENTS if other.need and other.need.n_ctx <= facts.n_ctx and other != agent]
    if others:
        remedy += f" These agents need less: {', '.join(others)}."
    if facts.n_ctx < n_least:
        return Check("refusal", f"{begins}, but {has}{because}.", remedy)
    return Check("warning", f"{begins}; {has}{because}: long sessions need {n_wanted:,}.", remedy)
