"""The command `localllm`: the terminal app for a person, plain text for a pipe, every verb for the command line.

Imports nothing before it knows which: `localllm --help` must not wait for a user interface.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

from quantizer.errors import UserError
from tui.arguments import app_options

__all__ = ["main"]


def main() -> None:
    """Run what the command line asks for."""
    options = app_options(sys.argv[1:])
    if options is None:
        _command_line(sys.argv[1:])
    elif sys.stdin.isatty() and sys.stdout.isatty():
        _terminal_app(options)
    else:
        _command_line(["run", *sys.argv[1:]])


def _command_line(arguments: list[str]) -> None:
    from app.cli.main import main as command_line

    command_line(arguments)


def _terminal_app(options: Mapping[str, object]) -> None:
    from app.settings import load_settings

    try:
        settings = load_settings(options)
    except UserError as error:
        sys.stderr.write(f"Error: {error}\n")
        sys.exit(error.exit_status)
    from tui.app import run

    sys.exit(run(settings, options))


if __name__ == "__main__":
    main()
