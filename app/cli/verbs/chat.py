"""`localllm chat`: the full screen, or a saved chat in the scrollback."""

from __future__ import annotations

import sys

import click
from click.shell_completion import CompletionItem

from app.chat.store.chat_store import ChatStore
from app.cli.options import AnswerOptions, ToolOptions, chat_options, setting_options
from app.cli.prompts import ChatOptions, combined, current_interface, piped_text
from app.cli.resources import resolve_settings
from app.common.terminal import printable_line
from app.settings.settings import load_settings
from quantizer.system.errors import UsageError

_N_OFFERED = 20


def _complete_chat(_context: click.Context, _parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    with ChatStore(load_settings().data_dir) as store:
        page = store.chats.page(limit=_N_OFFERED)
    return [
        CompletionItem(str(chat.id), help=printable_line(chat.title)) for chat in page if f"{chat.id}".startswith(begun)
    ]


@click.command(epilog="Example: localllm chat --new --tools files,commands")
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
    interface = current_interface()
    if interface is None:
        raise UsageError("There is no terminal interface.", "Start it as `localllm chat`.")
    if is_new and chat_id is not None:
        raise UsageError("--new and --chat exclude each other.", "Give one of them.")
    chat_settings, requested_tools = answering.chat_settings(), tools.requested()
    prompt = combined(None, piped_text())
    is_at_terminal = sys.stdin is not None and sys.stdin.isatty()
    if not prompt and not is_at_terminal:
        raise UsageError("There is no prompt.", "Pipe one in, or start it at a terminal.")
    is_full_screen = not is_inline and is_at_terminal and sys.stdout is not None and sys.stdout.isatty()
    options = ChatOptions(
        settings=resolve_settings(model, flags, assume_yes=assume_yes, may_ask=not is_full_screen),
        chat=chat_settings,
        is_saved=True,
        chat_id=chat_id,
        is_new=is_new,
        keeps_model=model is not None,
        shows_stats=stats,
        prompt=prompt,
        tools=requested_tools,
    )
    if not is_full_screen:
        interface.run_chat(options)
        return
    if chat_id is not None:
        with ChatStore(options.settings.data_dir) as store:
            store.chats.get(chat_id)  # an unknown one is said here, not on a screen that is closed again
    app_flags = {**flags, "model": model, **({"when_unfit": "load"} if assume_yes else {})}
    click.get_current_context().exit(interface.run_app(options.settings, app_flags, options))
