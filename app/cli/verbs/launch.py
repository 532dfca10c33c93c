"""`localllm launch`: a coding agent against the service, with settings for that run only."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

from app.cli.confirm import confirm_load
from app.cli.options import options, setting_options
from app.cli.output.format import print_json, print_lines
from app.cli.resources import resolve_settings
from app.common.terminal import printable
from app.launch.agents import AGENTS, Agent, agent_named
from app.settings.settings import SettingSource, setting_sources
from quantizer.system.errors import StorageError, UsageError, UserError

if TYPE_CHECKING:
    from app.client.service_client import ServiceClient
    from app.launch.plan import LaunchPlan
    from app.launch.run import LaunchResult
    from app.protocol.status import ServiceStatus
    from app.settings.settings import Settings


_PROBE_TIMEOUT_S = 2.0


def _complete_agent(_context: click.Context, _parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    return [CompletionItem(agent.name, help=agent.title) for agent in AGENTS if agent.name.startswith(begun)]


@click.command(epilog="Example: localllm launch claude -m qwen3-coder -- --continue")
@click.argument("agent", required=False, shell_complete=_complete_agent)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@setting_options("model", "ctx", "kv_type", "gpu", "threads", "host", "port", "connect", "api_key")
@click.option("--print", "is_dry_run", is_flag=True, help="Print what would be done, and exit.")
@options("wants_json")
@click.option("-y", "--yes", "assume_yes", is_flag=True, help="Start it though the model does not fit, or not suffice.")
@click.pass_context
def launch(
    context: click.Context,
    /,
    agent: str | None,
    arguments: tuple[str, ...],
    is_dry_run: bool,
    wants_json: bool,
    assume_yes: bool,
    model: str | None,
    **flags: object,
) -> None:
    """Start a coding AGENT against the service; without one, list those that can be started.

    The service is started if none runs. The model is loaded with as much context as the agent needs, as far as memory
    allows, and checked for tools. The agent gets its settings for this run only, and what follows -- as its ARGUMENTS.
    At its end the use of the model is printed on stderr: tokens, the share that was reused, rates.
    """
    if agent is None:
        _list(wants_json=wants_json)
        return
    chosen = agent_named(agent)
    if chosen is None:
        raise UsageError(f"{agent!r} is not an agent.", f"Choose one of {', '.join(each.name for each in AGENTS)}.")
    sources = setting_sources({**flags, "model": model})
    settings = resolve_settings(model, flags, assume_yes=assume_yes)
    name = "" if sources["model"] is SettingSource.DEFAULT else settings.model  # the service's own default then
    launching = _Launching(chosen, arguments, settings, name)
    if is_dry_run:
        _print_plan(launching, wants_json=wants_json)
        return
    context.exit(asyncio.run(launching.run(assume_yes=assume_yes, wants_json=wants_json)))


def _list(*, wants_json: bool) -> None:
    from app.cli.output.launch import agent_json, agent_lines
    from app.launch.installed import find_agent

    found = {agent: find_agent(agent) for agent in AGENTS}
    if wants_json:
        print_json([agent_json(agent, installed) for agent, installed in found.items()])
    else:
        print_lines(agent_lines(found))


def _print_plan(launching: _Launching, *, wants_json: bool) -> None:
    from app.cli.output.launch import launch_json, plan_lines

    plan, service = asyncio.run(launching.planned())
    if wants_json:
        print_json(launch_json(plan, service))
    else:
        print_lines(plan_lines(plan, service))


class _Launching:
    """One launch of `agent` with `arguments`; `model` is empty for the service's default."""

    def __init__(self, agent: Agent, arguments: tuple[str, ...], settings: Settings, model: str) -> None:
        from app.launch.first_prompts import FirstPrompts
        from app.launch.installed import find_agent

        self._agent, self._arguments = agent, arguments
        self._settings, self._model = settings, model
        self._installed = find_agent(agent)
        version = self._installed.version if self._installed else ""
        self._prompts = FirstPrompts(settings.cache_dir, f"{agent.name} {version}".rstrip())

    async def planned(self) -> tuple[LaunchPlan, str]:
        """Return the plan, and what the service is; starts and loads nothing."""
        from app.launch.facts import known_facts
        from app.launch.plan import plan_launch

        path = self._installed.path if self._installed else self._agent.commands[0]
        url = self._settings.connect or self._settings.url
        service = await _running_status(self._settings)
        name = service.default_model if service and not self._model else self._model_id()
        facts = known_facts(name, service.model(name) if service else None, self._prompts, self._settings.ctx)
        words = f"The service at {url} {'runs already' if service else 'would be started'}."
        missing = "" if self._installed else f" {self._agent.title} is not installed: {self._agent.install}"
        return plan_launch(self._agent, path, url, facts, self._arguments), f"{words}{missing}"

    def _model_id(self) -> str:
        """Return the id that the chosen model has in the service. Raises ModelFileError where there is none."""
        from app.library.local.resolve import resolve

        name = self._model or self._settings.model
        return name if self._settings.connect else resolve(name, self._settings).id

    async def run(self, *, assume_yes: bool, wants_json: bool) -> int:
        """Start the service if none runs, check, run the agent, print what it used, and return its exit status."""
        from app.client.launcher import open_engine
        from app.client.service_client import ServiceClient
        from app.launch.installed import MissingAgentError
        from app.launch.run import run_launch

        if self._installed is None:
            raise MissingAgentError(self._agent)
        async with open_engine(self._settings) as client:
            if not isinstance(client, ServiceClient):
                raise UsageError(f"{client.base_url} is not a localllm service.", "Point the agent at it directly.")
            plan = await self._prepared(client, self._installed.path)
            self._report_checks(plan, assume_yes=assume_yes)
            result = await run_launch(client, plan)
        self._report_result(plan, result, wants_json=wants_json)
        return result.status

    async def _prepared(self, client: ServiceClient, path: str) -> LaunchPlan:
        """Return the plan for a model that is loaded, with as much context as the agent needs, if possible."""
        from app.cli.output.answer import BusyLine, LoadingLine
        from app.client.launcher import load_model
        from app.launch.facts import prepared_facts
        from app.launch.plan import plan_launch

        when_unfit, show = self._settings.when_unfit, LoadingLine().show
        status = await load_model(client, self._model, show, when_unfit=when_unfit, confirm_load=confirm_load)
        line = BusyLine()
        line.put(f"Preparing {status.id} for {self._agent.title}")
        try:
            facts = await prepared_facts(client, status.id, self._agent, self._prompts, self._settings.ctx)
        finally:
            line.clear()
        return plan_launch(self._agent, path, client.base_url, facts, self._arguments)

    def _report_checks(self, plan: LaunchPlan, *, assume_yes: bool) -> None:
        """Print what was checked, and what to paste for an agent without settings for a run. Raises a refusal."""
        from app.cli.output.launch import check_lines
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

    def _report_result(self, plan: LaunchPlan, result: LaunchResult, *, wants_json: bool) -> None:
        """Print what the run used on stderr, for stdout is the agent's, and remember how it began."""
        from app.cli.output.launch import result_json, result_lines

        if wants_json:
            click.echo(json.dumps(result_json(plan, result)), err=True)
        else:
            for line in result_lines(plan, result):
                click.echo(line, err=True)
        if result.usage is not None and result.usage.n_answers:
            try:
                self._prompts.record(plan.target.model, result.usage.n_first_prompt_tokens)
            except StorageError as error:  # the agent has done its work: its exit status counts
                click.echo(f"Warning: {printable(str(error))}", err=True)


async def _running_status(settings: Settings) -> ServiceStatus | None:
    """Return the status of the service that runs, None where none does or it does not accept our key."""
    from app.client.service_client import ServiceClient
    from app.common.keys import own_key

    url, key = settings.connect or settings.url, settings.api_key if settings.connect else own_key(settings)
    async with ServiceClient(url, key) as client:
        try:
            async with asyncio.timeout(_PROBE_TIMEOUT_S):
                return await client.status()
        except (UserError, TimeoutError, ValueError, KeyError, TypeError):
            return None
