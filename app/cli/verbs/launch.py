"""`localllm launch`: a coding agent against the service, with settings for that run only."""

from __future__ import annotations

import asyncio
import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from app.cli.options import options, setting_options
from app.cli.output.format import print_result
from app.cli.prompts import confirm_load
from app.cli.resources import probe_service, resolve_settings, show_kept, show_notices
from app.common.terminal import printable, printable_line
from app.launch.agents import AGENTS, Agent, agent_named
from app.protocol.codec import encode
from app.settings.settings import SettingSource, setting_sources
from quantizer.system.errors import StorageError, UsageError, UserError

if TYPE_CHECKING:
    from app.client.service_client import ServiceClient
    from app.launch.plan import Check, LaunchPlan, ModelFacts, SmallModel
    from app.launch.run import Installed, LaunchResult
    from app.settings.settings import Settings


_SAME_MODEL = "same"


def agent_lines(agents: Mapping[Agent, Installed | None]) -> Iterator[str]:
    """Yield two lines for each agent: whether it is installed, and what it needs."""
    n_name = max(len(agent.name) for agent in agents)
    for agent, installed in agents.items():
        how = agent.install if agent.install.startswith("see ") else f"`{agent.install}`"
        where = f"{installed.version or 'installed'} at {installed.path}" if installed else f"not installed: {how}"
        yield f"{agent.name:<{n_name}}  {agent.title}, {printable_line(where)}"
        needs = "takes no settings for one run; launch prints what to paste"
        if agent.need is not None:
            tools = ", a model that takes tools" if agent.needs_tools else ""
            first = f"begins with about {agent.need.n_first:,} tokens, " if agent.need.n_first else ""
            known = f"tested with {agent.tested}" if agent.tested else "not run here, from its code"
            needs = f"{first}goes on in {agent.need.n_ctx:,}{tools}; {known}"
        yield f"{'':<{n_name}}  {needs}"


def agent_json(agent: Agent, installed: Installed | None) -> dict[str, Any]:
    return {
        "name": agent.name,
        "title": agent.title,
        "installed": installed is not None,
        "path": installed.path if installed else None,
        "version": (installed.version or None) if installed else None,
        "install": agent.install,
        "api": agent.api,
        "first_tokens": (agent.need.n_first or None) if agent.need else None,
        "context": agent.need.n_ctx if agent.need else None,
        "needs_tools": agent.needs_tools,
        "takes_settings": agent.takes_settings,
        "tested": agent.tested or None,
        "least_version": agent.least_version or None,
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
    return {
        "agent": plan.agent.name,
        "service": service,
        "model": plan.target.model,
        "n_ctx": plan.target.n_ctx,
        "small_model": plan.target.small.id,
        "command": list(plan.command),
        "environment": dict(plan.environment),
        "removed": list(plan.removed),
        "files": dict(plan.files),
        "checks": [encode(check) for check in plan.checks],
    }


def result_lines(plan: LaunchPlan, result: LaunchResult) -> Iterator[str]:
    usage = result.usage
    if usage is None:
        yield f"The service ended while {plan.agent.title} ran: nobody counted its requests."
    elif not usage.n_answers:
        yield f"{plan.agent.title} got no answer with the key of this run: there is nothing to report."
    else:
        answers = "1 answer" if usage.n_answers == 1 else f"{usage.n_answers:,} answers"
        later = f", {usage.later_cached_share:.0%} of those after the first prompt" if usage.n_answers > 1 else ""
        reused = f"{usage.n_cached_tokens:,} ({usage.cached_share:.0%}{later}) reused from the cache"
        yield printable_line(
            f"{plan.agent.title} with {plan.target.model}: {answers}, {usage.n_prompt_tokens:,} prompt tokens,"
            f" {reused}, {usage.n_output_tokens:,} tokens generated."
        )
        rates = (("prefill", usage.prefill_tokens_per_s), ("decode", usage.decode_tokens_per_s))
        begun = f", {usage.n_first_cached_tokens:,} of them reused" if usage.n_first_cached_tokens else ""
        yield " · ".join((
            f"first token after {usage.first_token_s or 0:.2f} s (median)",
            *(f"{name} {rate:.1f} tok/s" for name, rate in rates if rate),
            f"it began with {usage.n_first_prompt_tokens:,} tokens{begun}",
        ))  # fmt: skip
    if usage is not None and usage.n_failed:
        are = "request was" if usage.n_failed == 1 else "requests were"
        yield f"{usage.n_failed} {are} refused."


def result_json(plan: LaunchPlan, result: LaunchResult) -> dict[str, Any]:
    """Return how a run ended as JSON data; `usage` is null where nobody counted."""
    usage, rates = result.usage, ("cached_share", "later_cached_share", "prefill_tokens_per_s", "decode_tokens_per_s")
    return {
        "agent": plan.agent.name,
        "model": plan.target.model,
        "n_ctx": plan.target.n_ctx,
        "exit_status": result.status,
        "took_s": result.took_s,
        "usage": usage and encode(usage) | {name: getattr(usage, name) for name in rates},
    }


def _complete_agent(_context: click.Context, _parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    return [CompletionItem(agent.name, help=agent.title) for agent in AGENTS if agent.name.startswith(begun)]


@click.command(epilog="Example: localllm launch claude -m qwen3-coder -- --continue")
@click.argument("agent", required=False, shell_complete=_complete_agent)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@setting_options("model", "ctx", "kv_type", "gpu", "threads", "host", "port", "connect", "api_key")
@click.option(
    "--small-model", metavar="NAME", default="", help="Model for the agent's small tasks; 'same' for the main one."
)
@click.option("--print", "is_dry_run", is_flag=True, help="Print what would be done, then exit.")
@options("wants_json")
@click.option("-y", "--yes", "assume_yes", is_flag=True, help="Start it even if the model doesn't fit or suffice.")
@click.pass_context
def launch(
    context: click.Context,
    /,
    agent: str | None,
    arguments: tuple[str, ...],
    is_dry_run: bool,
    small_model: str,
    wants_json: bool,
    assume_yes: bool,
    model: str | None,
    **flags: object,
) -> None:
    """Start a coding AGENT that uses the service; without AGENT, list the supported ones.

    The service is started if none is running. The model is loaded with as much context as the agent needs and memory
    allows, and checked for tool calls. Small tasks (titles, web pages) go to a smaller model of the library if it fits
    beside the main one. The agent's settings apply to this run only; ARGUMENTS after -- are passed to
    it. When it exits, stderr shows how much of the model it used: tokens, the share that was reused, rates.
    """
    if agent is None:
        from app.launch.run import find_agent

        installed = {agent: find_agent(agent) for agent in AGENTS}
        listed = [agent_json(agent, where) for agent, where in installed.items()]
        print_result(listed, agent_lines(installed), wants_json=wants_json)
        return
    chosen = agent_named(agent)
    if chosen is None:
        raise UsageError(f"{agent!r} is not an agent.", f"Choose one of {', '.join(each.name for each in AGENTS)}.")
    if small_model not in ("", _SAME_MODEL) and chosen.small_tasks is None:
        cause = f"{chosen.title} has no small tasks for another model."
        raise UsageError(cause, "Leave out --small-model.")
    sources = setting_sources({**flags, "model": model})
    settings = resolve_settings(model, flags, assume_yes=assume_yes)
    name = "" if sources["model"] is SettingSource.DEFAULT else settings.model  # the service's own default then
    launching = _Launching(chosen, arguments, settings, name, small_model)
    if is_dry_run:
        plan, service = asyncio.run(launching.planned())
        print_result(launch_json(plan, service), plan_lines(plan, service), wants_json=wants_json)
        return
    context.exit(asyncio.run(launching.run(assume_yes=assume_yes, wants_json=wants_json)))


class _Launching:
    """One launch of `agent` with `arguments`; `model` is empty for the service's default. `small_model` is a name,
    "same", or empty for the one that fits."""

    def __init__(
        self, agent: Agent, arguments: tuple[str, ...], settings: Settings, model: str, small_model: str
    ) -> None:
        from app.launch.model_facts import FirstPrompts
        from app.launch.run import find_agent

        self._agent, self._arguments = agent, arguments
        self._settings, self._model, self._small_model = settings, model, small_model
        self._installed = find_agent(agent)
        self._version = self._installed.version if self._installed else ""
        self._prompts = FirstPrompts(settings.cache_dir, f"{agent.name} {self._version}".rstrip())

    async def planned(self) -> tuple[LaunchPlan, str]:
        """Return the plan, and what the service is; starts and loads nothing. Raises ModelFileError for a model that is
        not there."""
        from app.client.launcher import service_of
        from app.launch.model_facts import known_facts
        from app.launch.plan import plan_launch
        from app.library.local.resolve import resolve

        path = self._installed.path if self._installed else self._agent.commands[0]
        found = await probe_service(self._settings)
        url, service = found or (self._settings.connect or self._settings.url, None)
        name = self._model or (service.default_model if service else self._settings.model)
        if not self._settings.connect and (self._model or not service):
            name = resolve(name, self._settings).id  # as the service calls it
        status = service.model(name) if service else None
        facts = known_facts(name, status, self._prompts, self._settings.ctx)
        words = f"The service at {url} {'runs already' if service else 'would be started'}."
        missing = "" if self._installed else f" {self._agent.title} is not installed: {self._agent.install}"
        if status is not None and status.state == "ready":
            async with service_of(self._settings) as client:
                small = await self._small(client, facts)
        else:
            small = await self._small(None, facts)
        plan = plan_launch(self._agent, path, url, facts, self._arguments, version=self._version, small=small)
        return plan, f"{words}{missing}"

    async def run(self, *, assume_yes: bool, wants_json: bool) -> int:
        """Start the service if none runs, check, run the agent, print what it used, and return its exit status."""
        from app.client.launcher import open_engine
        from app.client.service_client import ServiceClient
        from app.launch.run import MissingAgentError, run_launch

        if self._installed is None:
            raise MissingAgentError(self._agent)
        async with open_engine(self._settings, keeps=True) as client:
            show_notices(client)
            if not isinstance(client, ServiceClient):
                raise UsageError(f"{client.base_url} is not a localllm service.", "Point the agent at it directly.")
            plan = await self._prepared(client, self._installed.path)
            self._report_checks(plan, assume_yes=assume_yes)
            result = await run_launch(client, plan)
        # On stderr, for stdout is the agent's.
        for line in [json.dumps(result_json(plan, result))] if wants_json else result_lines(plan, result):
            click.echo(line, err=True)
        show_kept(client, wants_json=wants_json)
        if result.usage is not None and result.usage.n_answers:
            try:
                self._prompts.record(plan.target.model, result.usage.n_first_prompt_tokens)
            except StorageError as error:  # the agent has done its work: its exit status counts
                click.echo(f"Warning: {printable(str(error))}", err=True)
        return result.status

    async def _prepared(self, client: ServiceClient, path: str) -> LaunchPlan:
        """Return the plan for a model that is loaded, with as much context as the agent needs, if possible."""
        from app.cli.output.answer import BusyLine, LoadingLine
        from app.client.launcher import load_model
        from app.launch.model_facts import prepared_facts
        from app.launch.plan import plan_launch
        from app.launch.small_model import load_small_model

        when_unfit, show = self._settings.when_unfit, LoadingLine().show
        status = await load_model(client, self._model, show, when_unfit=when_unfit, confirm_load=confirm_load)
        line = BusyLine()
        line.put(f"Preparing {status.id} for {self._agent.title}")
        try:
            facts = await prepared_facts(client, status.id, self._agent, self._prompts, self._settings.ctx)
            small = await self._small(client, facts)
            if small is not None and (wanted := small.model) is not None:
                line.put(f"Preparing {wanted.id} for small tasks of {self._agent.title}")
                if self._small_model:  # the user's choice: if it cannot be had, that is an error
                    context = await client.lengthen_context(wanted.id, wanted.n_ctx)
                    small = replace(small, model=replace(wanted, n_ctx=context.n_ctx))
                else:
                    small = await load_small_model(client, wanted, facts.id) or small
        finally:
            line.clear()
        return plan_launch(
            self._agent, path, client.base_url, facts, self._arguments, version=self._version, small=small
        )

    async def _small(self, client: ServiceClient | None, facts: ModelFacts) -> SmallModel | None:
        """Return the model for the agent's small tasks, None where it has none; without `client` the main one, of
        `facts`, is not loaded. Loads nothing. Raises ModelFileError for the user's choice, if it is not there."""
        from app.launch.agents import TargetModel
        from app.launch.plan import SmallModel
        from app.launch.small_model import choose_small_model
        from app.library.local.resolve import resolve

        tasks, name = self._agent.small_tasks, self._small_model
        if tasks is None or name == _SAME_MODEL:
            return None
        if name:
            is_known = self._settings.connect or name == facts.id  # which may lie outside the library
            name = name if is_known else resolve(name, self._settings).id
            if name == facts.id:  # its context is the main one's, not that of small tasks
                return None
            return SmallModel(TargetModel(name, tasks.n_ctx or facts.n_ctx), f"{name}, as you chose")
        if client is None:
            return SmallModel(None, f"{facts.id}, or to a smaller model that fits beside it, seen once it is loaded")
        return await choose_small_model(client, facts.id, tasks, facts.n_ctx)

    def _report_checks(self, plan: LaunchPlan, *, assume_yes: bool) -> None:
        """Print what was checked, and what to paste for an agent without settings for a run. Raises a refusal."""
        from app.launch.editors import editor_settings

        refusals = plan.of("refusal")
        if refusals and not assume_yes:
            first = refusals[0]
            raise UserError(first.text, f"{first.remedy} Or try it all the same with --yes.".lstrip())
        for line in check_lines(plan.checks):
            click.echo(line, err=True)
        if not self._agent.takes_settings:
            click.echo(
                f"{self._agent.title} takes no settings for one run. If it does not have them yet, add:", err=True
            )
            click.echo(editor_settings(self._agent.editor, plan.target.url, plan.target.model), err=True)
