"""The page `assets/docs/settings.md`, made from the table: run `python -m app.options.docs` in the repository."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from app.options.jobs import JOBS, job_rows
from app.options.option import Effect, Group, Kind, Option, Section
from app.settings.settings import SETTINGS

_HEAD = """# Settings and options

Settings come from four places; later ones win:

1. the default,
2. `config.toml` in your configuration folder, or the file that `LOCALLLM_CONFIG` names,
3. the environment: `LOCALLLM_CTX=8192`; empty variables are ignored,
4. the command line: `localllm --ctx 8192` starts the app with it; `run`, `chat` and `serve` take settings too.

F10 in the app shows the settings in the same sections, what is chosen where a value is `auto`, and where each value
comes from, and changes the file; `/` searches. In the file, switches are `true` or `false`, lists are
`["a.gguf", "b.gguf"]`, and `keys` is a table `[keys]`. In the environment, items of a list are separated as in PATH.

When a new value takes effect: **now**, at the next **load** of a model, or at the next **start** of app and service.
"""
_JOBS = """
# Options of jobs

The service runs these commands as jobs too: `POST /api/localllm/jobs` takes the arguments named here.
"""
_EFFECTS = {Effect.AT_ONCE: "now", Effect.AT_LOAD: "load", Effect.AT_START: "start"}


def settings_page() -> str:
    """Return the page in Markdown: a table of settings for each section, and one of options for each kind of job."""
    return "\n".join([_HEAD, *_settings(), _JOBS, *_jobs()]).rstrip() + "\n"


def _settings() -> Iterator[str]:
    for section in Section:
        found = [row for row in SETTINGS.values() if row.shown_section is section]
        if found:
            yield f"## {section}\n"
            heading = ("setting", "flag", "default", "takes effect", "meaning")
            cells = (
                (f"`{row.name}`", _flags(row), _default(row), _EFFECTS[row.effect], _meaning(row)) for row in found
            )
            yield from _table(heading, cells)


def _jobs() -> Iterator[str]:
    for kind in JOBS:
        yield f"## localllm {kind}\n"
        found = job_rows(kind).values()
        cells = ((f"`{row.name}`", _flags(row), _default(row), _meaning(row)) for row in found)
        yield from _table(("argument", "option", "default", "meaning"), cells)


def _table(heading: tuple[str, ...], lines: Iterable[tuple[str, ...]]) -> Iterator[str]:
    yield f"| {' | '.join(heading)} |"
    yield f"|{'---|' * len(heading)}"
    for cells in lines:
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
    yield ""


def _flags(row: Option) -> str:
    if row.is_positional:
        return f"`{row.metavar}`"
    flags = (*row.flags, row.no_flag) if row.kind is Kind.FLAG and row.group is not Group.JOB else row.flags
    return " ".join(f"`{flag}`" for flag in flags)


def _default(row: Option) -> str:
    if row.kind is Kind.FLAG:
        return str(row.default).lower()
    return row.shown_default() or row.unset


def _meaning(row: Option) -> str:
    limits = ""
    if row.kind is Kind.INTEGER and row.least > 0:
        limits = f" {row.least:,} to {row.most:,}."
    choices = f" One of {', '.join(row.choices)}." if row.choices and row.group is not Group.JOB else ""
    return f"{row.help}{choices}{limits}"


if __name__ == "__main__":
    Path("assets/docs/settings.md").write_text(settings_page(), encoding="utf-8")
