"""The command `localllm`: the terminal app for a person, plain text for a pipe, every verb for the command line.

Imports nothing before it knows which: `localllm --help` must not wait for a user interface.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, TextIO

from app.terminal import printable
from quantizer.errors import UserError
from tui.arguments import app_options

if TYPE_CHECKING:
    from app.cli.face import Talk
    from app.settings import Settings

__all__ = ["main"]

_VERB = "chat"  # may stand before the options of the app, or be left out


def main() -> None:
    """Run what the command line asks for."""
    arguments = sys.argv[1:]
    for_the_app = arguments[1:] if arguments[:1] == [_VERB] else arguments
    options = app_options(for_the_app)
    if options is None:
        _command_line(arguments)
    elif _is_terminal(sys.stdin) and _is_terminal(sys.stdout):
        _terminal_app(options)
    else:
        _command_line(["run", *for_the_app])


def _is_terminal(stream: TextIO | None) -> bool:
    """Whether a person is there; a stream that was closed before the start is None."""
    return stream is not None and stream.isatty()


def _command_line(arguments: list[str]) -> None:
    from app.cli.face import Face
    from app.cli.main import main as command_line

    command_line(arguments, face=Face(_run_app, _hold_talk))


def _terminal_app(options: Mapping[str, object]) -> None:
    from app.settings import load_settings

    try:
        sys.exit(_run_app(load_settings(options), options))
    except UserError as error:
        sys.stderr.write(f"Error: {printable(str(error))}\n")
        sys.exit(error.exit_status)


def _run_app(settings: Settings, options: Mapping[str, object]) -> int:
    from tui.run import run

    return run(settings, options)


def _hold_talk(talk: Talk) -> None:
    from tui.inline.sitting import hold

    hold(talk)


if __name__ == "__main__":
    main()
