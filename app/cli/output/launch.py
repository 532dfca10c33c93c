"""What `localllm launch` prints: the agents, the plan of a run, what was checked, and what the run used.

Owns the words. Independent of how any of it is found.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from app.common.terminal import printable, printable_line
from app.launch.agents import Agent
from app.launch.installed import Installed
from app.launch.plan import Check, LaunchPlan
from app.launch.run import LaunchResult
from app.protocol.codec import encode
from app.protocol.metering import MeteredUsage


def agent_lines(agents: Mapping[Agent, Installed | None]) -> Iterator[str]:
    """Yield two lines for each agent: whether it is installed, and what it needs."""
    n_name = max(len(agent.name) for agent in agents)
    for agent, installed in agents.items():
        yield f"{agent.name:<{n_name}}  {agent.title}, {_where(agent, installed)}"
        yield f"{'':<{n_name}}  {_needs(agent)}"


def _where(agent: Agent, installed: Installed | None) -> str:
    if installed is None:
        how = agent.install if agent.install.startswith("see ") else f"`{agent.install}`"
        return f"not installed: {how}"
    return printable_line(f"{installed.version or 'installed'} at {installed.path}")


def _needs(agent: Agent) -> str:
    if agent.need is None:
        return "takes no settings for one run; launch prints what to paste"
    tools = ", a model that takes tools" if agent.needs_tools else ""
    first = f"begins with about {agent.need.n_first:,} tokens"
    return f"{first}, goes on in {agent.need.n_ctx:,}{tools}; tested with {agent.tested}"


def agent_json(agent: Agent, installed: Installed | None) -> dict[str, Any]:
    """Return an agent of the list as JSON data."""
    return {
        "name": agent.name,
        "title": agent.title,
        "installed": installed is not None,
        "path": installed.path if installed else None,
        "version": (installed.version or None) if installed else None,
        "install": agent.install,
        "api": agent.api,
        "first_tokens": agent.need.n_first if agent.need else None,
        "context": agent.need.n_ctx if agent.need else None,
        "needs_tools": agent.needs_tools,
        "takes_settings": agent.takes_settings,
        "tested": agent.tested or None,
    }


def check_lines(checks: Sequence[Check]) -> Iterator[str]:
    """Yield a line for each check, one that is not right with what helps."""
    marks = {"ok": "", "unknown": "", "warning": "Warning: ", "refusal": "Error: "}
    for check in checks:
        yield printable(f"{marks[check.verdict]}{check.text} {check.remedy}".rstrip())


def plan_lines(plan: LaunchPlan, service: str) -> Iterator[str]:
    """Yield what a launch would do, as lines of a shell where that is possible; the key is not known yet."""
    yield f"# {printable_line(service)}"
    yield from (f"# {line}" for line in check_lines(plan.checks))
    for name, text in plan.files.items():
        yield f"# <folder>/{name}:"
        yield from (f"#   {printable(line)}" for line in text.splitlines())
    yield from (f"unset {name}" for name in plan.removed)
    for name, value in plan.environment.items():
        yield printable_line(f"export {name}={_quoted(value)}")
    yield printable_line(" ".join(map(_quoted, plan.command)))


def _quoted(text: str) -> str:
    """Return a word for a shell; placeholders stay readable in double quotes."""
    is_simple = not set(text) & set("\"\\$`!'")
    return f'"{text}"' if "<" in text and is_simple else shlex.quote(text)


def launch_json(plan: LaunchPlan, service: str) -> dict[str, Any]:
    """Return what a launch would do as JSON data."""
    return {
        "agent": plan.agent.name,
        "service": service,
        "model": plan.target.model,
        "n_ctx": plan.target.n_ctx,
        "command": list(plan.command),
        "environment": dict(plan.environment),
        "removed": list(plan.removed),
        "files": dict(plan.files),
        "checks": [encode(check) for check in plan.checks],
    }


def result_lines(plan: LaunchPlan, result: LaunchResult) -> Iterator[str]:
    """Yield what the requests of a run used."""
    usage = result.usage
    if usage is None:
        yield f"The service ended while {plan.agent.title} ran: nobody counted its requests."
    elif not usage.n_answers:
        yield f"{plan.agent.title} got no answer with the key of this run: there is nothing to report."
    else:
        yield from _usage_lines(plan, usage)
    if usage is not None and usage.n_failed:
        are = "request was" if usage.n_failed == 1 else "requests were"
        yield f"{usage.n_failed} {are} refused."


def _usage_lines(plan: LaunchPlan, usage: MeteredUsage) -> Iterator[str]:
    answers = "1 answer" if usage.n_answers == 1 else f"{usage.n_answers:,} answers"
    later = f", {usage.later_cached_share:.0%} of those after the first prompt" if usage.n_answers > 1 else ""
    reused = f"{usage.n_cached_tokens:,} ({usage.cached_share:.0%}{later}) reused from the cache"
    yield printable_line(
        f"{plan.agent.title} with {plan.target.model}: {answers}, {usage.n_prompt_tokens:,} prompt tokens, {reused},"
        f" {usage.n_output_tokens:,} tokens generated."
    )
    parts = [f"first token after {usage.first_token_s or 0:.2f} s (median)"]
    if usage.prefill_tokens_per_s:
        parts.append(f"prefill {usage.prefill_tokens_per_s:.1f} tok/s")
    if usage.decode_tokens_per_s > 0:
        parts.append(f"decode {usage.decode_tokens_per_s:.1f} tok/s")
    begun = f", {usage.n_first_cached_tokens:,} of them reused" if usage.n_first_cached_tokens else ""
    parts.append(f"it began with {usage.n_first_prompt_tokens:,} tokens{begun}")
    yield " · ".join(parts)


def result_json(plan: LaunchPlan, result: LaunchResult) -> dict[str, Any]:
    """Return how a run ended as JSON data; `usage` is null where nobody counted."""
    usage = result.usage
    rates = (
        {}
        if usage is None
        else {
            "cached_share": usage.cached_share,
            "later_cached_share": usage.later_cached_share,
            "prefill_tokens_per_s": usage.prefill_tokens_per_s,
            "decode_tokens_per_s": usage.decode_tokens_per_s,
        }
    )
    return {
        "agent": plan.agent.name,
        "model": plan.target.model,
        "n_ctx": plan.target.n_ctx,
        "exit_status": result.status,
        "took_s": result.took_s,
        "usage": None if usage is None else {**encode(usage), **rates},
    }
