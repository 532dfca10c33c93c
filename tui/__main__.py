"""The command `localllm`: the terminal app in a terminal, plain text in a pipe, and the verbs of the command line.
Imports `app.cli` or the app only when it is chosen: `localllm --help` must not wait for a user interface."""

from __future__ import annotations

import gc
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TextIO

from app.common.standard_streams import open_missing_streams, print_error
from app.common.terminal import printable
from quantizer.system.errors import UserError
from quantizer.system.faults import reported_faults
from quantizer.system.memory_limit import ProcessBytes, check_memory_limit, save_address_space

if TYPE_CHECKING:
    from app.cli.prompts import ChatOptions
    from app.settings.settings import Settings


_VERB = "chat"  # optional before the app's options
_NOT_SETTINGS = ("-h", "--help", "-V", "--version")


def app_options(arguments: Sequence[str]) -> dict[str, object] | None:
    """Return the settings that `arguments` give, or None if the command line is not for the app."""
    if arguments and (not arguments[0].startswith("-") or arguments[0] in _NOT_SETTINGS):
        return None  # without the import of settings, for which help would wait
    from app.options.option import parse_flags
    from app.settings.settings import SETTINGS

    options = parse_flags(SETTINGS.values(), arguments)
    if options and options.get("connect") and not options.get("model"):
        options["model"] = ""  # the engine chooses: it may have no guide
    return options


def main() -> None:
    open_missing_streams()
    arguments = sys.argv[1:]
    for_the_app = arguments[1:] if arguments[:1] == [_VERB] else arguments
    options = app_options(for_the_app)
    if options is None:
        _command_line(arguments)
    elif not (_is_terminal(sys.stdin) and _is_terminal(sys.stdout)):
        _command_line(["run", *for_the_app])
    else:
        save_address_space()
        try:
            check_memory_limit("app", ProcessBytes.COMMAND)
            with reported_faults("app"):
                from app.settings.settings import load_settings

                sys.exit(_run_app(load_settings(options), options))
        except KeyboardInterrupt:  # of the chat in the scrollback
            sys.exit(130)
        except UserError as error:
            print_error(f"Error: {printable(str(error))}")
            sys.exit(error.exit_status)


def _is_terminal(stream: TextIO | None) -> bool:
    """Return whether `stream` is a terminal; a stream closed before the start is None."""
    return stream is not None and stream.isatty()


def _command_line(arguments: list[str]) -> None:
    from app.cli.main import main as command_line
    from app.cli.prompts import UserInterface

    command_line(arguments, interface=UserInterface(_run_app, _run_inline))


def _run_app(settings: Settings, options: Mapping[str, object], opening: ChatOptions | None = None) -> int:
    """Run the full screen, or the chat in the scrollback in a terminal that cannot show it; return the exit status.
    `options` are the settings of the command line, `opening` says how the first chat begins."""
    from tui.screen_check import prepare_screen

    if obstacle := prepare_screen():
        from app.chat.conversation import ChatSettings
        from app.cli.prompts import ChatOptions

        sys.stderr.write(f"{obstacle}\n")
        keeps_model = options.get("model") is not None
        _run_inline(
            opening or ChatOptions(settings=settings, chat=ChatSettings(), is_saved=True, keeps_model=keeps_model)
        )
        return 0
    gc.disable()  # until the first frame, `LocalllmApp._preload`: what imports and widgets make stays
    from tui.run import run

    return run(settings, options, opening)


def _run_inline(options: ChatOptions) -> None:
    from tui.inline.session import run_inline

    run_inline(options)


if __name__ == "__main__":
    main()
