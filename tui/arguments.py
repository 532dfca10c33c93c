"""The options of the terminal app, and whether a command line is for it at all.

Owns the few options; every verb belongs to `app.cli`.
"""

from __future__ import annotations

from argparse import ArgumentError, ArgumentParser
from collections.abc import Sequence

__all__ = ["app_options"]


def app_options(arguments: Sequence[str]) -> dict[str, object] | None:
    """Return the settings that `arguments` give (None: not given), or None for any other command line."""
    parser = ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("-m", "--model")
    parser.add_argument("--host")
    parser.add_argument("--connect", metavar="URL")
    parser.add_argument("--key", dest="api_key")
    for name in ("--ctx", "--threads", "--port"):
        parser.add_argument(name, type=int)
    try:
        options, others = parser.parse_known_args(list(arguments))
    except ArgumentError:
        return None
    if others:
        return None
    if options.connect and not options.model:
        options.model = ""  # the engine's own choice: it may have no guide
    return vars(options)
