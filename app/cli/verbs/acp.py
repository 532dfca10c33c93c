"""`localllm acp`: an agent that an editor starts, over stdin and stdout."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace

import click

from app.cli.options import AnswerOptions, ToolOptions, agent_options, setting_options
from app.cli.prompts import exit_on_signals
from app.cli.resources import resolve_settings
from app.common.standard_streams import private_streams

_DEFAULT_TOOLS = ("files", "commands")
_MODES = ("ask", "edit", "auto")  # `app.acp.modes` has them; its package is not imported for --help


@click.command(epilog="Example: localllm acp --model qwen3-coder")
@setting_options("model")
@click.option(
    "--mode",
    "mode_id",
    type=click.Choice(_MODES),
    default="ask",
    show_default=True,
    help="What new sessions do unasked: read in the folder (ask), change files too (edit), run commands too (auto).",
)
@agent_options
def acp(
    answering: AnswerOptions,
    tools: ToolOptions,
    model: str | None,
    mode_id: str,
    *,
    assume_yes: bool,
    **flags: object,
) -> None:
    """Answer an editor that speaks the Agent Client Protocol: Zed, toad and others start this command.

    Its sessions are chats, which the app shows too. Tools of new ones are files and commands, in the folder that the
    editor has open, unless --tools names others (--tools "" none). The editor asks before each call that changes or
    runs something. `localllm help editors` says what to write into its settings.
    """
    settings = resolve_settings(model, flags, assume_yes=assume_yes, may_ask=False)
    answered, requested = answering.chat_settings(), tools.requested()
    if sys.stdin is not None and sys.stdin.isatty():
        click.echo("An editor starts this command and speaks to it on stdin. Ctrl-D ends it.", err=True)
    from app.acp.agent import AgentOptions, serve
    from app.acp.modes import mode_of

    has_default_tools = not tools.tools
    if has_default_tools:
        requested = replace(requested, enabled=_DEFAULT_TOOLS)
    options = AgentOptions(
        settings=settings,
        answering=answered,
        tools=requested,
        mode=mode_of(mode_id),
        has_default_tools=has_default_tools,
    )
    stdin, stdout = private_streams()
    with exit_on_signals():
        asyncio.run(serve(options, stdin, stdout))
