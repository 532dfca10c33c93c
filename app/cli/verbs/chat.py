"""`localllm chat`: the full screen, or a saved chat in the scrollback."""

from __future__ import annotations

import sys

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from app.cli.options import AnswerOptions, ToolOptions, chat_options, setting_options
from app.cli.prompts import ChatOptions, combined, current_interface, piped_text
from app.cli.resources import resolve_settings
from app.common.terminal import printable_line
from app.settings.settings import SETTINGS, load_settings
from quantizer.system.errors import UsageError

_OF_THE_APP = {"is_inline", *SETTINGS} - {"system"}  # that of one chat is an option of the inline chat
_N_OFFERED = 20


def _complete_chat(_context: click.Context, _parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    from app.chat.store.chat_store import ChatStore

    with ChatStore(load_settings().data_dir) as store:
        page = store.chats.page(limit=_N_OFFERED)
    return [
        CompletionItem(str(chat.id), help=printable_line(chat.title)) for chat in page if f"{chat.id}".startswith(begun)
    ]


@click.command(epilog="Example: localllm chat --inline -m guide")
@setting_options("model")
@click.option(
    "--inline", "is_inline", is_flag=True, help="Chat in the terminal's scrollback instead of the full screen."
)
@click.option(
    "--new/--continue",
    "is_new",
    default=False,
    help="Start a new chat, or continue the last one.  [default: --continue]",
)
@click.option(
    "--chat",
    "chat_id",
    type=int,
    metavar="ID",
    help="Continue this chat of `chats list`.",
    shell_complete=_complete_chat,
)
@chat_options
def chat(
    answering: AnswerOptions,
    tools: ToolOptions,
    model: str | None,
    chat_id: int | None,
    *,
    is_inline: bool,
    is_new: bool,
    stats: bool,
    assume_yes: bool,
    **flags: object,
) -> None:
    """Chat with a model, in the full screen or, with --inline, line by line; both store chats in one place.

    Piped text is sent as a message; only its answer is printed.
    """
    interface, context = current_interface(), click.get_current_context()
    if not is_inline:
        for parameter in context.command.params:
            is_given = context.get_parameter_source(parameter.name or "") is ParameterSource.COMMANDLINE
            if is_given and parameter.name not in _OF_THE_APP:
                raise UsageError(f"{parameter.opts[0]} is for a chat in the scrollback.", "Give --inline too.")
    if interface is None:
        raise UsageError("There is no terminal interface.", "Start it as `localllm chat`.")
    if not is_inline:
        settings_flags = {**flags, "model": model}
        context.exit(interface.run_app(load_settings(settings_flags), settings_flags))
    if is_new and chat_id is not None:
        raise UsageError("--new and --chat exclude each other.", "Give one of them.")
    chat_settings = answering.chat_settings()
    prompt = combined(None, piped_text())
    if not prompt and (sys.stdin is None or not sys.stdin.isatty()):
        raise UsageError("There is no prompt.", "Pipe one in, or start it at a terminal.")
    interface.run_chat(
        ChatOptions(
            settings=resolve_settings(model, flags, assume_yes=assume_yes),
            chat=chat_settings,
            is_saved=True,
            chat_id=chat_id,
            is_new=is_new,
            keeps_model=model is not None,
            shows_stats=stats,
            prompt=prompt,
            tools=tools.requested(),
        )
    )
