"""Sizes as people write them on the command line: 500M, 4.2GB, 2GiB."""

from __future__ import annotations

import click

from app.byte_size import parse_byte_size

__all__ = ["byte_size_option"]


def byte_size_option(_context: click.Context, _option: click.Parameter, text: str | None) -> int:
    """Callback of an option: its size in bytes, 0 when it was not given."""
    return 0 if text is None else parse_byte_size(text)
