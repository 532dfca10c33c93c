"""`localllm mcp`: the servers of `mcp.json` listed, added, removed, imported, tested, and logged in to; our own."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from app.cli.options import options
from app.cli.output.format import print_json, print_lines, print_result
from app.common.terminal import printable_line, quoted_command, quoted_name
from quantizer.system.errors import UsageError, UserError

if TYPE_CHECKING:
    from app.tools.mcp.config import Launch, ServerConfig
    from app.tools.mcp.other_programs import FoundServer
    from app.tools.mcp.server import McpServer
    from app.tools.tool import ServerStatus


_WIDTH_CHARACTERS = 100


@click.group(epilog="Example: localllm mcp add time -- uvx mcp-server-time")
def mcp() -> None:
    """List, add, import, test and log in to MCP servers; serve as one.

    Servers are listed in mcp.json beside the settings file, in the format of Cursor and Claude Desktop. Their tools
    are off until you enable them in a chat with /tools, and each call asks first.
    """


@mcp.command("list")
@click.option("--no-start", is_flag=True, help="Only show what mcp.json says; start nothing.")
@options("wants_json")
def list_servers(*, no_start: bool, wants_json: bool) -> None:
    """List servers and their tools: start each server, and stop it again."""
    from app.tools.mcp.config import mcp_file

    file = mcp_file()
    configs = file.servers()
    statuses = {} if no_start else asyncio.run(_statuses())  # by the name in the file, of those not disabled
    if wants_json:
        print_json({"file": str(file.path), "servers": [_as_json(each, statuses.get(each.name)) for each in configs]})
        return
    if not configs:
        click.echo(f"There are no servers in {printable_line(str(file.path))}.", err=True)
    for config in configs:
        state = "  (disabled)" if config.is_disabled else ""
        what = printable_line(_summary(config.launch)) if config.launch else config.problem
        print_lines([f"{printable_line(config.name)}{state}  {what}"])
        if status := statuses.get(config.name):
            print_lines([f"  {printable_line(status.problem)}"] if status.problem else [])
            print_lines(_have(status) if status.state != "failed" else [])


@mcp.command(context_settings={"ignore_unknown_options": True})
@click.argument("name")
@click.argument("words", nargs=-1, required=True, type=click.UNPROCESSED, metavar="(URL | -- COMMAND...)")
@click.option("--env", multiple=True, metavar="NAME=VALUE", help="Variable of the command's environment; repeatable.")
@click.option("--header", multiple=True, metavar="NAME=VALUE", help="Header of the requests to a URL; repeatable.")
@click.option("--cwd", default="", help="Folder that the command starts in.")
@click.option(
    "--timeout", type=click.FloatRange(min=0, min_open=True), help="Seconds that a call may take.  [default: 60]"
)
@click.option("--overwrite", is_flag=True, help="Replace a server of this name.")
def add(
    name: str,
    words: tuple[str, ...],
    *,
    env: tuple[str, ...],
    header: tuple[str, ...],
    cwd: str,
    timeout: float | None,
    overwrite: bool,
) -> None:
    """Add the server NAME: a command to start, or the URL of a running server.

    ${NAME} in a value is replaced from the environment when the server starts, so that mcp.json need not contain a key.
    """
    from app.tools.mcp.config import DEFAULT_TIMEOUT_S, HttpLaunch, StdioLaunch, launch_entry, mcp_file

    is_url = len(words) == 1 and words[0].startswith(("http://", "https://"))
    if ((env or cwd) and is_url) or (header and not is_url):
        raise UsageError("--env and --cwd are for a command, --header is for a URL.")
    launch: Launch = (
        HttpLaunch(words[0], _pairs(header, "--header"))
        if is_url
        else StdioLaunch(words[0], words[1:], _pairs(env, "--env"), cwd)
    )
    file = mcp_file()
    file.add(name, launch_entry(launch, timeout_s=timeout or DEFAULT_TIMEOUT_S), is_replacing=overwrite)
    click.echo(f"Added {printable_line(name)} to {printable_line(str(file.path))}.")
    click.echo(f"Try it: localllm mcp test {printable_line(name)}", err=True)


@mcp.command()
@click.argument("name")
def remove(name: str) -> None:
    """Remove the server NAME from mcp.json."""
    from app.tools.mcp.config import mcp_file
    from app.tools.mcp.logins import LoginFile

    mcp_file().remove(name)
    LoginFile(name).remove()
    click.echo(f"Removed {printable_line(name)}.")


@mcp.command()
@click.argument("name")
@click.option("--no-browser", is_flag=True, help="Only print the address to open.")
@options("wants_json")
def login(name: str, *, no_browser: bool, wants_json: bool) -> None:
    """Log in to the server NAME in your browser, and keep the login.

    Where the browser runs on another machine, paste the address at which it ended: it begins with http://127.0.0.1.
    """
    from app.tools.mcp.logins import log_in

    server = _server(name)

    async def logged_in() -> _Trial:
        await log_in(server.config, partial(_show_address, opens_browser=not no_browser), _pasted_line)
        return await _tried(server)

    trial = asyncio.run(logged_in())
    lines = [f"Logged in to {printable_line(server.config.name)}.", *trial.lines()]
    print_result(trial.as_json(), lines, wants_json=wants_json)
    if trial.status.state == "failed":
        raise click.exceptions.Exit(1)


@mcp.command()
@click.argument("name")
@options("wants_json")
def logout(name: str, *, wants_json: bool) -> None:
    """Forget the login to the server NAME; a server that is no longer in mcp.json too."""
    from app.tools.mcp.logins import LoginFile

    was_logged_in = LoginFile(name).remove()
    text = f"Logged out of {name}." if was_logged_in else f"There was no login to {name}."
    print_result({"server": name, "was_logged_in": was_logged_in}, [printable_line(text)], wants_json=wants_json)


async def _show_address(url: str, *, opens_browser: bool) -> None:
    """Print where to log in, and open it where there is a browser with windows of its own."""
    import webbrowser

    click.echo(f"Log in here: {printable_line(url)}", err=True)
    has_windows = sys.platform in ("win32", "darwin") or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    if opens_browser and has_windows and not os.environ.get("SSH_CONNECTION"):
        await asyncio.to_thread(webbrowser.open, url)


async def _pasted_line() -> str:
    """Return the first line that the person types; waits for ever where there is no terminal."""
    loop = asyncio.get_running_loop()
    line: asyncio.Future[str] = loop.create_future()

    def take(text: str) -> None:
        if not line.done():
            line.set_result(text)

    def read() -> None:
        with suppress(RuntimeError, OSError):  # the loop ended before the person typed
            loop.call_soon_threadsafe(take, sys.stdin.readline())

    if sys.stdin is not None and sys.stdin.isatty():
        threading.Thread(target=read, daemon=True).start()  # nothing ends a read: the process does not wait for it
    return await line


@mcp.command("import")
@options("assume_yes", "wants_json")
def import_servers(*, assume_yes: bool, wants_json: bool) -> None:
    """Import servers from Claude Desktop, Claude Code, Cursor, VS Code, LM Studio, Windsurf and Zed.

    Shows each command in full and asks; --json only lists them. Read a command before you say yes: it runs with your
    rights whenever its tools are used.
    """
    from app.tools.mcp.config import mcp_file
    from app.tools.mcp.other_programs import find_servers

    found, problems = find_servers(Path.home(), app_data=os.environ.get("APPDATA", ""))
    file = mcp_file()
    known = {config.name: config.launch for config in file.servers()}
    if wants_json:
        print_json({"found": [_found_json(each, known) for each in found], "problems": problems})
        return
    print_lines(problems)
    new = [each for each in found if each.config.launch is not None and each.config.name not in known]
    for each in found:
        if each not in new:
            print_lines([f"{each.config.name} of {each.program} is left out: {_why_left_out(each, known)}"])
    if new and not assume_yes and (sys.stdin is None or not sys.stdin.isatty()):
        raise UsageError("This needs a confirmation for each server.", "Run it at a terminal, or with --yes.")
    n_added = sum(_take_over(each, known, assume_yes=assume_yes) for each in new)
    click.echo(f"Imported {n_added} of {len(found)} servers into {printable_line(str(file.path))}.")


@mcp.command()
@click.argument("name")
@options("wants_json")
def test(name: str, *, wants_json: bool) -> None:
    """Start the server NAME, list its tools, and report how long that took."""
    trial = asyncio.run(_tried(_server(name)))
    print_result(trial.as_json(), trial.lines(), wants_json=wants_json)
    if trial.status.state == "failed":
        raise click.exceptions.Exit(1)


@mcp.command(epilog="Example: localllm mcp serve --http 8401")
@click.option("--http", "port", type=click.IntRange(1, 65535), help="Serve at this port instead of standard streams.")
def serve(*, port: int | None) -> None:
    """Offer models, chats and documents of this machine to other programs, by MCP.

    Tools: ask a model, transcribe a sound, embed texts, search chats and documents. Standard streams are for a program
    that starts this command. Over HTTP the rules of `localllm serve` hold: on this machine your own programs, elsewhere
    those with a key of the scope manage.
    """
    import importlib

    from app.cli.resources import resolve_settings
    from app.common.extras import MCP

    if not MCP.is_installed:
        raise MCP.missing
    settings = resolve_settings(None, {"connect": None}, assume_yes=False, may_ask=False)
    serving = importlib.import_module("app.tools.mcp.sdk.serving")
    with suppress(KeyboardInterrupt):
        asyncio.run(serving.serve_stdio(settings) if port is None else serving.serve_http(settings, port))


def _server(name: str) -> McpServer:
    """Return the server that is called so in mcp.json or by models. Raises UsageError."""
    from app.tools.mcp.config import mcp_file
    from app.tools.mcp.server import mcp_servers

    mcp_file().servers()  # one that cannot be read is an error here
    server = next((each for each in mcp_servers() if name in (each.config.name, each.name)), None)
    if server is None:
        raise UsageError(f"There is no server {name!r}, or it is disabled.", "See `localllm mcp list --no-start`.")
    return server


@dataclass(frozen=True, slots=True)
class _Trial:
    """A server that was started and asked. Times are in seconds; `listed_s` is 0 where it did not start."""

    status: ServerStatus
    about: str
    started_s: float
    listed_s: float

    def as_json(self) -> dict[str, object]:
        return {
            **_status_json(self.status),
            "about": self.about,
            "started_s": round(self.started_s, 3),
            "listed_s": round(self.listed_s, 4),
        }

    def lines(self) -> list[str]:
        if self.status.state == "failed":
            return [f"{self.status.name}: {self.status.problem}"]
        timed = f"started and listed in {self.started_s:.2f} s, listed again in {self.listed_s * 1000:.0f} ms"
        return [f"{self.status.name}: {self.about}", f"  {timed}", *_have(self.status)]


async def _tried(server: McpServer) -> _Trial:
    """Start a server and list twice what it has; the import of the package is not part of the times."""
    from app.common.extras import MCP
    from app.tools.mcp.lifecycle import sdk_connect

    if MCP.is_installed:
        await sdk_connect()
    begun_s = time.perf_counter()
    try:
        await server.tools()
        started_s = time.perf_counter() - begun_s
        server.changed()
        begun_s = time.perf_counter()
        await server.tools()
        listed_s = time.perf_counter() - begun_s
        info = server.info
        about = f"{info.name} {info.version}, protocol {info.protocol_version}" if info else ""
        return _Trial(server.status(), about, started_s, listed_s)
    except UserError:
        return _Trial(server.status(), "", time.perf_counter() - begun_s, 0.0)
    finally:
        await server.close()


async def _statuses() -> dict[str, ServerStatus]:
    from app.tools.mcp.server import mcp_servers

    servers = mcp_servers()
    trials = await asyncio.gather(*map(_tried, servers))
    return {server.config.name: trial.status for server, trial in zip(servers, trials, strict=True)}


def _have(status: ServerStatus) -> list[str]:
    """Return a line for each tool, and the names of prompts and resources."""
    width = max((len(tool.definition.name) for tool in status.tools), default=0)
    lines = [
        f"  {tool.definition.name:<{width}}  {_short(tool.definition.description)}".rstrip() for tool in status.tools
    ]
    for kind, names in (("prompts", status.prompts), ("resources", status.resources)):
        if names:
            lines.append(f"  {kind}: {_short(', '.join(map(printable_line, names)))}")
    return lines


def _short(text: str) -> str:
    line = printable_line(text)
    return line if len(line) <= _WIDTH_CHARACTERS else f"{line[:_WIDTH_CHARACTERS]}…"


def _summary(launch: Launch) -> str:
    """Return the command or the URL; values of the environment and of headers may be keys, so they are not shown."""
    from app.tools.mcp.config import StdioLaunch

    return quoted_command((launch.command, *launch.args)) if isinstance(launch, StdioLaunch) else launch.url


def _in_full(launch: Launch) -> list[str]:
    """Return all that a launch says, a line for each part: what a person has to know before it may run."""
    from app.tools.mcp.config import StdioLaunch

    if isinstance(launch, StdioLaunch):
        folder = [f"    in       {quoted_name(launch.cwd)}"] if launch.cwd else []
        variables = [f"    with     {quoted_name(f'{name}={value}')}" for name, value in launch.env.items()]
        return [f"    command  {_summary(launch)}", *folder, *variables]
    return [f"    url      {launch.url}", *(f"    header   {name}: {value}" for name, value in launch.headers.items())]


def _take_over(found: FoundServer, known: dict[str, Launch | None], *, assume_yes: bool) -> bool:
    """Import a server once the person agrees; return whether it was."""
    from app.tools.mcp.config import mcp_file

    launch = found.config.launch
    assert launch is not None
    if found.config.name in known:
        print_lines([f"{found.config.name} of {found.program} is left out: {_why_left_out(found, known)}"])
        return False
    project = f", project {found.project}" if found.project else ""
    place = f"{found.config.name}  from {found.program}{project} ({quoted_name(str(found.path))})"
    for line in (place, *_in_full(launch)):  # printable, with the spaces that it begins with
        click.echo(line[: len(line) - len(line.lstrip())] + printable_line(line))
    if not assume_yes and not click.confirm(f"Import {printable_line(found.config.name)}?", err=True):
        return False
    mcp_file().add(found.config.name, found.entry)
    known[found.config.name] = launch
    return True


def _why_left_out(found: FoundServer, known: dict[str, Launch | None]) -> str:
    if found.config.launch is None:
        return found.config.problem
    if known.get(found.config.name) == found.config.launch:
        return "it is here already."
    return f"mcp.json has another server of this name; `localllm mcp remove {found.config.name}` first."


def _pairs(texts: Sequence[str], flag: str) -> dict[str, str]:
    pairs = [text.partition("=") for text in texts]
    if not all(name and separator for name, separator, _ in pairs):
        raise UsageError(f"{flag} takes NAME=VALUE.")
    return {name: value for name, _, value in pairs}


def _as_json(config: ServerConfig, status: ServerStatus | None) -> dict[str, Any]:
    shown: dict[str, Any] = {"name": config.name, "disabled": config.is_disabled, "timeout_s": config.timeout_s}
    shown |= {"launch": _summary(config.launch) if config.launch else "", "problem": config.problem}
    return shown | (_status_json(status) if status else {})


def _status_json(status: ServerStatus) -> dict[str, Any]:
    tools = [{"name": each.definition.name, "description": each.definition.description} for each in status.tools]
    return {
        "server": status.name,
        "state": "failed" if status.state == "failed" else "ready",
        "problem": status.problem,
        "tools": tools,
        "prompts": status.prompts,
        "resources": status.resources,
    }


def _found_json(found: FoundServer, known: dict[str, Launch | None]) -> dict[str, Any]:
    is_new = found.config.launch is not None and found.config.name not in known
    return {
        "name": found.config.name,
        "program": found.program,
        "path": str(found.path),
        "project": found.project,
        "entry": found.entry,
        "problem": "" if is_new else _why_left_out(found, known),
    }
