"""The service and its state: `localllm serve`, `ps`, `jobs` and `key`."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import click

from app.cli.options import LOAD_ANYWAY, option, options, service_options
from app.cli.output.format import print_json, print_lines, print_result
from app.cli.prompts import confirm_load
from app.cli.resources import ask_service, with_unfit_policy
from app.common.standard_streams import say_no_more
from app.common.terminal import format_bytes, printable, printable_line
from app.launch.editors import EDITORS, context_advice, editor_settings
from app.settings.parsing import is_loopback
from app.settings.settings import Settings, load_settings
from quantizer.system.errors import UsageError, UserError
from quantizer.system.faults import reported_faults
from quantizer.system.memory_limit import ProcessBytes, check_memory_limit

if TYPE_CHECKING:
    from app.client.service_client import ServiceClient
    from app.common.keys import Key, KeyFile
    from app.protocol.job import Job
    from app.service.starting import Announcement


_MAX_NAME_CHARACTERS = 64  # of a key


@click.command(epilog="Example: localllm serve -m model.gguf --ctx 16384")
@click.option(
    "--editor",
    type=click.Choice(EDITORS),
    metavar="NAME",
    help="Print the settings for a client (claude-code, codex, zed, open-webui, openai …), then exit.",
)
@service_options
@option("assume_yes", help=LOAD_ANYWAY)
@click.option("--owned", is_flag=True, hidden=True, help="End with stdin; print the address as JSON.")
@click.option("--keeps", is_flag=True, hidden=True, help="With --owned: stay after that as `keep_service` says.")
def serve(owned: bool, keeps: bool, assume_yes: bool, editor: str | None, **flags: object) -> None:
    """Serve models to editors and programs, on http://127.0.0.1:11500.

    Compatible with the APIs of OpenAI, Anthropic, Ollama, llama.cpp and LM Studio.
    """
    settings = load_settings(flags)
    if editor:
        click.echo(editor_settings(editor, settings.url, settings.model, settings.ctx))
        if advice := context_advice(editor, settings.ctx):
            click.echo(advice, err=True)
        return
    settings = with_unfit_policy(settings, assume_yes=assume_yes, may_ask=not owned)
    if owned and not keeps:
        settings = replace(settings, keep_service="0")
    if not owned:  # an owner has checked it
        check_memory_limit("service", ProcessBytes.SERVICE)
        _end_unused(settings)
    from app.service.starting import OperatorPrompt
    from app.service.starting import serve as run_service

    if not owned:
        needs_stored_key = not (settings.api_key or is_loopback(settings.host))
        operator = OperatorPrompt(lambda notice: click.echo(printable(notice), err=True), confirm_load)
        run_service(settings, partial(_announce, needs_stored_key), operator)
        return
    try:
        with reported_faults("service"):
            run_service(settings, _announce_to_owner)
    except UserError as error:
        from app.service.http.errors import openai_error

        say_no_more()
        print_json(openai_error(error, hide_paths=False))
        sys.exit(error.exit_status)


def _end_unused(settings: Settings) -> None:
    """End a service that has the port only because an earlier command left it for the next one."""
    with suppress(OSError), socket.create_connection((urlsplit(settings.url).hostname, settings.port), 1):
        from app.client.launcher import stop_services

        asyncio.run(stop_services(settings, if_unused=True))


def _announce(needs_stored_key: bool, service: Announcement) -> None:
    also = f" and on {', '.join(map(str, service.also))}" if service.also else ""
    url = f"{service.url}{also} (OpenAI API: {service.url}/v1)"
    click.echo(f"localllm serves {service.model} on {url}. Press Ctrl-C to stop.")
    if needs_stored_key:
        click.echo("Clients have to send a key: `localllm key` prints it.")


def _announce_to_owner(service: Announcement) -> None:
    try:
        print_json(service)
    except OSError:  # an owner that is gone by now is noticed by the end of stdin
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # so that Python can flush it at exit


@click.command(epilog="Example: localllm stop")
@options("wants_json")
def stop(wants_json: bool) -> None:
    """Stop your running service, once its running answers are complete (60 seconds at most).

    The service of another user or data folder is not touched. Commands and the app start the service when they need it.
    """
    from app.client.launcher import stop_services

    stopped = asyncio.run(stop_services(load_settings()))
    lines = [f"Stopped the service at {url}." for url in stopped] or ["No service of yours runs."]
    print_result({"stopped": stopped}, lines, wants_json=wants_json)


@click.group("service", epilog="Example: localllm service install")
def login_service_verbs() -> None:
    """Start the service when you log in: by systemd, launchd, or Windows' task scheduler.

    It has the settings of the settings file (`localllm help settings`) and the folders of this command's environment.
    """


@login_service_verbs.command()
@options("wants_json")
def install(wants_json: bool) -> None:
    """Install the service and start it. Run it again after an update or a change of settings."""
    from app.client.login_service import install as install_service
    from app.client.login_service import login_service

    found = login_service(load_settings())
    install_service(found)
    lines = [f"Wrote {found.path}:", "", *(f"  {line}" for line in found.text.splitlines()), ""]
    lines += ["The service runs, and starts when you log in.", *filter(None, (found.hint,)), f"Logs: {found.logs}"]
    print_result({"path": str(found.path), "logs": found.logs}, lines, wants_json=wants_json)


@login_service_verbs.command()
@options("wants_json")
def status(wants_json: bool) -> None:
    """Say whether the service is installed and runs. The exit status is 1 if it does not run."""
    from app.client.login_service import is_running, login_service

    found = login_service(load_settings())
    is_installed, runs = found.path.exists(), is_running(found)
    state = "It runs." if runs else "It does not run."
    lines = [f"Installed as {found.path}. {state}", f"Logs: {found.logs}"] if is_installed else ["Not installed."]
    value = {"path": str(found.path), "is_installed": is_installed, "is_running": runs, "logs": found.logs}
    print_result(value, lines, wants_json=wants_json)
    if not runs:
        raise click.exceptions.Exit(1)


@login_service_verbs.command("remove")
@options("wants_json")
def uninstall(wants_json: bool) -> None:
    """End the service and remove what `install` wrote. Models, chats and settings stay."""
    from app.client.login_service import login_service
    from app.client.login_service import remove as remove_service

    found = login_service(load_settings())
    was_installed = remove_service(found)
    words = f"Removed {found.path}." if was_installed else "It was not installed."
    print_result({"path": str(found.path), "was_installed": was_installed}, [words], wants_json=wants_json)


@click.command(epilog="Example: localllm ps")
@options("wants_json")
def ps(wants_json: bool) -> None:
    """List the models of a running service with their state, memory and settings.

    Each setting says where it comes from: an option, a measurement with its figures, the model, or the default.
    """
    models = ask_service(lambda client: client.status()).models
    if wants_json:
        print_json(models)
    else:
        for model in models:
            memory = f", {format_bytes(model.n_bytes)}" if model.n_bytes else ""
            running = f", {model.n_running} running" if model.n_running else ""
            context = f", {model.n_ctx:,} tokens of context" if model.n_ctx else ""
            print_lines([f"{model.id}  {model.state}{context}{memory}{running}"])
            if model.threads is not None and model.threads.words:
                print_lines([f"  busy machine: {model.threads.words}"])
            if model.plan is not None and (most_bytes := model.plan.saved_chats_bytes):
                held = format_bytes(model.occupancy.saved_bytes) if model.occupancy is not None else "0 B"
                print_lines([f"  chats that left the cache: {held}, at most {format_bytes(most_bytes)}"])
            print_lines(f"  {setting.words}" for setting in model.settings)
            if model.sampling is not None and model.sampling.words:
                print_lines([f"  sampling: {model.sampling.words}"])


@click.group(invoke_without_command=True, epilog="Example: localllm key new laptop --scope infer")
@options("wants_json")
@click.pass_context
def key(context: click.Context, *, wants_json: bool) -> None:
    """Print this machine's API key, which has all permissions; create it if there is none.

    `localllm serve --host ADDRESS` accepts keys as a Bearer token or x-api-key. Clients on this machine need none,
    unless --api-key sets one. Keys are stored in a file that only you can read. --json also prints the key as an LM
    Studio API token, the only form that LM Studio's SDKs send.
    """
    if context.invoked_subcommand is None:
        first = _keys().first("first")
        print_result(_as_json(first), [first.secret], wants_json=wants_json)


@key.command("list")
@options("wants_json")
def list_keys(*, wants_json: bool) -> None:
    """List name, scopes and creation date of each key; --json also prints the keys."""
    keys = _keys().known()
    if wants_json:
        print_json({"keys": [_as_json(item) for item in keys]})
        return
    width = max((len(printable_line(item.name)) for item in keys), default=0)
    for item in keys:
        scopes = ",".join(sorted(item.scopes))
        click.echo(f"{printable_line(item.name):<{width}}  {scopes:<12}  {_made(item)[:10]}")


@key.command()
@click.argument("name")
@click.option(
    "--scope",
    "scopes",
    multiple=True,
    type=click.Choice(("infer", "manage")),
    help="What the key allows; repeatable.  [default: infer]",
)
@options("wants_json")
def new(name: str, scopes: tuple[str, ...], *, wants_json: bool) -> None:
    """Create a key called NAME and print it.

    The scope infer allows using models, manage loading, downloading and deleting them. A running service accepts the
    key at once.
    """
    from app.common.keys import KeyScope

    if not name.strip() or len(name) > _MAX_NAME_CHARACTERS or name != printable_line(name):
        raise UsageError(
            f"{printable_line(name)!r} is not a valid name.", f"Give one of at most {_MAX_NAME_CHARACTERS} characters."
        )
    made = _keys().add(name, map(KeyScope, scopes or ("infer",)))
    print_result(_as_json(made), [made.secret], wants_json=wants_json)


@key.command()
@click.argument("name")
@options("wants_json")
def remove(name: str, *, wants_json: bool) -> None:
    """Remove the key called NAME. A running service rejects it at once."""
    _keys().remove(name)
    print_result({"removed": name}, [f"Removed {printable_line(name)}."], wants_json=wants_json)


def _keys() -> KeyFile:
    from app.common.keys import key_file

    return key_file(load_settings())


def _as_json(item: Key) -> dict[str, object]:
    from app.common.keys import lmstudio_token

    return {
        "name": item.name,
        "key": item.secret,
        "lmstudio_token": lmstudio_token(item.secret),
        "scopes": sorted(item.scopes),
        "made_at": _made(item),
    }


def _made(item: Key) -> str:
    return datetime.fromtimestamp(item.made_s, UTC).isoformat()


@click.group(epilog="Example: localllm jobs watch")
def jobs() -> None:
    """List, watch, cancel and retry jobs of a running service.

    The terminal app and POST /api/localllm/jobs start jobs; `localllm pull` and other commands run without a service.
    """


@jobs.command("list")
@options("wants_json")
def list_jobs(wants_json: bool) -> None:
    """List queued, running and finished jobs, oldest first."""
    found = ask_service(lambda client: client.jobs())
    print_result(found, map(_line, found) if found else ["There are no jobs."], wants_json=wants_json)


@jobs.command()
@click.argument("job_id", metavar="[ID]", required=False)
@options("wants_json")
def watch(job_id: str | None, wants_json: bool) -> None:
    """Print the progress of job ID until it ends, or of all jobs until Ctrl-C, which stops no job.

    The exit status is 1 if job ID failed.
    """

    async def follow(client: ServiceClient) -> Job | None:
        job = None
        async for job in client.watch_job(job_id) if job_id else client.watch_jobs():
            print_result(job, [_line(job)], wants_json=wants_json)
        return job

    last = ask_service(follow)
    if last is not None and last.state != "done":
        raise last.error.error() if last.error else UserError(f"The job {last.id} was {last.state}.")


@jobs.command()
@click.argument("job_id", metavar="ID")
@options("wants_json")
def cancel(job_id: str, wants_json: bool) -> None:
    """Cancel job ID. A partial download is kept."""
    job = ask_service(lambda client: client.cancel_job(job_id))
    print_result(job, [_line(job)], wants_json=wants_json)


@jobs.command()
@click.argument("job_id", metavar="ID")
@options("wants_json")
def retry(job_id: str, wants_json: bool) -> None:
    """Queue job ID again after it failed, was cancelled or interrupted. A download resumes."""
    job = ask_service(lambda client: client.retry_job(job_id))
    print_result(job, [_line(job)], wants_json=wants_json)


@jobs.command()
@click.argument("job_id", metavar="ID")
def log(job_id: str) -> None:
    """Print the log of job ID."""
    click.echo(printable(ask_service(lambda client: client.job_log(job_id))), nl=False)


def _line(job: Job) -> str:
    share = f"{job.fraction:.0%}" if job.fraction is not None and not job.has_ended else ""
    rate = f"{format_bytes(int(job.bytes_per_s))}/s" if job.bytes_per_s else ""
    left = f"{job.remaining_s:.0f} s left" if job.remaining_s is not None and not job.has_ended else ""
    message = job.error.cause if job.error else job.message if not job.has_ended else ""
    parts = (job.id, job.state, share, job.title, message, rate, left)
    return "  ".join(printable_line(part) for part in parts if part)
