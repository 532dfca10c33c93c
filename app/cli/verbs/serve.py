"""`localllm serve`: the service in the foreground, or as the child of a face that owns it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from functools import partial

import click

from app.cli.confirm import confirm_load, with_unfit_policy
from app.cli.editors import EDITORS, editor_settings
from app.cli.options import complete_model, rpc_option
from app.settings.parsing import is_loopback
from app.settings.settings import load_settings
from app.terminal import printable
from quantizer.errors import UserError

__all__ = ["serve"]


@click.command(epilog="Example: localllm serve -m model.gguf --ctx 16384")
@click.option(
    "--host",
    help="Address to listen on. Beyond this machine clients need a key, see `localllm key`.  [default: 127.0.0.1]",
)
@click.option("--port", type=click.IntRange(0, 65535), help="Port to listen on; 0 takes a free one.  [default: 11500]")
@click.option(
    "--also", is_flag=True, default=None, help="Listen on 11434, 1234, 8080 and 8012 too, where they are free."
)
@click.option("--editor", type=click.Choice(EDITORS), help="Print the settings for an editor or program, and end.")
@click.option(
    "-m",
    "--model",
    shell_complete=complete_model,
    help="guide, a path to a GGUF, or a name in the library.  [default: guide]",
)
@click.option("--ctx", type=click.IntRange(min=0), help="Tokens of context; 0 lets localllm choose.")
@click.option("--kv-type", help="What the KV cache stores, TYPE or K_TYPE,V_TYPE: f16, q8_0, q4_0 ...  [default: f16]")
@click.option("--draft", metavar="MODEL", help="Small model of the same family that drafts for the model.")
@click.option("--lora", multiple=True, metavar="FILE[=NAME]", help="LoRA adapter to load with the model; repeatable.")
@click.option(
    "--control-vector",
    multiple=True,
    metavar="FILE[=SCALE]",
    help="Direction to steer the whole model by; repeatable.",
)
@click.option(
    "--context-shift", is_flag=True, default=None, help="Answers that fill the context go on; the oldest tokens go."
)
@rpc_option
@click.option("--gpu/--no-gpu", default=None, help="Whether GPUs are used.  [default: --gpu]")
@click.option(
    "--yes", "assume_yes", is_flag=True, help="Load the model even where it fits only in part, or not at all."
)
@click.option("--threads", type=click.IntRange(min=0), help="CPU threads; 0 lets localllm choose.")
@click.option("--parallel", type=click.IntRange(1, 256), help="Answers at once.  [default: 8]")
@click.option("--api-key", help="Key that clients must send (better: LOCALLLM_API_KEY, which `ps` does not show).")
@click.option(
    "--access-log", is_flag=True, default=None, help="A line on stderr for each request; never what was asked."
)
@click.option("--owned", is_flag=True, hidden=True, help="End with stdin; say where it listens as JSON.")
def serve(owned: bool, assume_yes: bool, editor: str | None, **flags: object) -> None:
    """Answer editors and programs on this machine, on http://127.0.0.1:11500.

    The APIs of OpenAI, Anthropic, Ollama, llama.cpp and LM Studio are spoken there.
    """
    settings = load_settings({name: None if value == () else value for name, value in flags.items()})
    if editor:
        click.echo(editor_settings(editor, settings.url, settings.model))
        return
    settings = with_unfit_policy(settings, assume_yes=assume_yes, may_ask=not owned)
    from app.service.http.errors import openai_error
    from app.service.operator_prompt import OperatorPrompt
    from app.service.server import serve as run_service

    if not owned:
        needs_stored_key = not (settings.api_key or is_loopback(settings.host))
        run_service(settings, partial(_announce, needs_stored_key), OperatorPrompt(_tell, confirm_load))
        return
    try:
        run_service(settings, _announce_to_owner)
    except UserError as error:
        _tell_owner(openai_error(error, hide_paths=False))
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
        _tell_owner({"url": url, "model": model_id, "also": ports})
    except OSError:  # an owner that is gone by now is noticed by the end of stdin
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # where Python may flush what it kept


def _tell_owner(line: Mapping[str, object]) -> None:
    click.echo(json.dumps(line))
