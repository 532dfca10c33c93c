"""`localllm serve`: the service in the foreground, or as a child that ends with its owner; settings of editors."""

from __future__ import annotations

import os
import sys
from functools import partial

import click

from app.cli.confirm import confirm_load, with_unfit_policy
from app.cli.options import options, service_options
from app.cli.output.format import print_json
from app.common.terminal import printable
from app.launch.editors import EDITORS, context_advice, editor_settings
from app.settings.parsing import is_loopback
from app.settings.settings import load_settings
from quantizer.system.errors import UserError
from quantizer.system.memory_limit import ProcessBytes, check_memory_limit, reported_shortage


@click.command(epilog="Example: localllm serve -m model.gguf --ctx 16384")
@click.option("--editor", type=click.Choice(EDITORS), help="Print the settings for an editor or program, and exit.")
@service_options
@options("assume_yes")
@click.option("--owned", is_flag=True, hidden=True, help="End with stdin; print the address as JSON.")
def serve(owned: bool, assume_yes: bool, editor: str | None, **flags: object) -> None:
    """Serve editors and programs on this machine, on http://127.0.0.1:11500.

    Compatible with the APIs of OpenAI, Anthropic, Ollama, llama.cpp and LM Studio.
    """
    settings = load_settings(flags)
    if editor:
        click.echo(editor_settings(editor, settings.url, settings.model, settings.ctx))
        if advice := context_advice(editor, settings.ctx):
            click.echo(advice, err=True)
        return
    settings = with_unfit_policy(settings, assume_yes=assume_yes, may_ask=not owned)
    if not owned:  # an owner has checked it
        check_memory_limit("service", ProcessBytes.SERVICE)
    from app.service.http.errors import openai_error
    from app.service.server import OperatorPrompt
    from app.service.server import serve as run_service

    if not owned:
        needs_stored_key = not (settings.api_key or is_loopback(settings.host))
        run_service(settings, partial(_announce, needs_stored_key), OperatorPrompt(_tell, confirm_load))
        return
    try:
        with reported_shortage("service"):
            run_service(settings, _announce_to_owner)
    except UserError as error:
        print_json(openai_error(error, hide_paths=False))
        sys.exit(error.exit_status)


def _announce(needs_stored_key: bool, url: str, model_id: str, ports: tuple[int, ...]) -> None:
    also = f" and on {', '.join(map(str, ports))}" if ports else ""
    click.echo(f"localllm serves {model_id} on {url}{also} (OpenAI API: {url}/v1). Press Ctrl-C to stop.")
    if needs_stored_key:
        click.echo("Clients have to send a key: `localllm key` prints it.")


def _tell(notice: str) -> None:
    click.echo(printable(notice), err=True)


def _announce_to_owner(url: str, model_id: str, ports: tuple[int, ...]) -> None:
    try:
        print_json({"url": url, "model": model_id, "also": ports})
    except OSError:  # an owner that is gone by now is noticed by the end of stdin
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # so that Python can flush it at exit
