"""`localllm show`: what a model file is, from its header, and what this machine has learnt of it."""

from __future__ import annotations

import click

from app.cli.options import complete_model, options
from app.cli.output.format import print_json
from app.cli.resources import open_index
from app.common.terminal import printable, printable_line
from app.settings.settings import load_settings


@click.command(epilog="Example: localllm show qwen3:0.6b-q8_0")
@click.argument("model", shell_complete=complete_model)
@click.option(
    "--template", "wants_template", is_flag=True, help="Print the chat template, or its difference to the base."
)
@options("wants_json")
def show(model: str, *, wants_template: bool, wants_json: bool) -> None:
    """Show the header of MODEL (guide, a path to a GGUF, or a name that `localllm ls --external` lists)."""
    from app.library.local.model_record import describe_model, template_changes
    from app.library.local.resolve import resolve
    from quantizer.gguf.validation import validate_gguf

    settings = load_settings()
    header = validate_gguf(resolve(model, settings).path)
    with open_index(settings.cache_dir) as index:
        described = describe_model(header, index, settings.cache_dir)
    if wants_json:
        print_json(described)
    elif wants_template:
        click.echo(printable("\n".join(template_changes(header) or [header.text("tokenizer.chat_template")])))
    else:
        rows = [(label, printable_line(text)) for label, text in described.rows]
        width = max(len(label) for label, _ in rows)
        for label, text in rows:
            click.echo(f"{label:<{width}}  {text}")
