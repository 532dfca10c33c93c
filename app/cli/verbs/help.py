"""`localllm help`: the pages of the user's guide."""

from __future__ import annotations

import sys

import click
from click.shell_completion import CompletionItem

from app.common.help_topics import TOPICS, read_topic


def _complete_topic(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(name, help=title) for name, title in TOPICS.items() if name.startswith(incomplete)]


@click.command("help", epilog="Example: localllm help quantize")
@click.argument("topic", required=False, shell_complete=_complete_topic)
@click.pass_context
def show_help(context: click.Context, topic: str | None) -> None:
    """Show a page of the user's guide, or list its topics.

    TOPIC may also be a command: then its options are shown. In a pipe a page is printed as Markdown.
    """
    if topic is None:
        click.echo("Topics (localllm help TOPIC):\n")
        for name, title in TOPICS.items():
            click.echo(f"  {name:<10} {title}")
        click.echo("\nlocalllm COMMAND --help lists the options of a command.")
        return
    root = context.find_root()
    assert isinstance(root.command, click.Group)
    if topic not in TOPICS and (command := root.command.get_command(root, topic)):
        click.echo(command.get_help(click.Context(command, info_name=topic, parent=root)))
        return
    page = read_topic(topic)
    if not sys.stdout.isatty():
        click.echo(page)
        return
    # Rich is imported for a terminal only: --help and pipes must not wait for it.
    from rich.console import Console
    from rich.markdown import Markdown

    console = Console(width=min(Console().width, 100))
    with console.pager(styles=True, links=False):
        console.print(Markdown(page, hyperlinks=False))
