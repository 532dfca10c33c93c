"""`localllm help`, the pages of the user's guide, and `completion`, what a shell needs to complete words at Tab."""

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


_SHELLS = ("bash", "zsh", "fish")
# Like click's, but bash splits words at the colons in names of models: the current word is joined again before it is
# completed, and the replies leave out what bash keeps of it (as bash-completion does with `-n :`).
_BASH = r"""
%(complete_func)s() {
    local IFS=$'\n' response completion type value rest kept="" index=$COMP_CWORD
    local line="${COMP_LINE:0:COMP_POINT}" words=("${COMP_WORDS[@]:0:COMP_CWORD+1}")
    local current="${line##*[[:space:]]}"
    rest="$current"
    while ((index > 0)) && [[ $rest == ?*"${COMP_WORDS[index]}" && $rest != "${COMP_WORDS[index]}" ]]; do
        rest="${rest%%"${COMP_WORDS[index]}"}"
        ((index--))
    done
    if [[ $rest == "${COMP_WORDS[index]}" ]]; then
        words=("${COMP_WORDS[@]:0:index}" "$current")
        [[ $COMP_WORDBREAKS == *:* ]] && kept="${current%%"${current##*:}"}"
    fi
    response=$(env COMP_WORDS="${words[*]}" COMP_CWORD=$((${#words[@]} - 1)) %(complete_var)s=bash_complete $1)
    for completion in $response; do
        IFS=',' read -r type value <<< "$completion"
        case $type in
            dir) COMPREPLY=(); compopt -o dirnames ;;
            file) COMPREPLY=(); compopt -o default ;;
            plain) COMPREPLY+=("${value#"$kept"}") ;;
        esac
    done
}
complete -o nosort -F %(complete_func)s %(prog_name)s
"""


@click.command(epilog="Example: localllm completion bash > ~/.local/share/bash-completion/completions/localllm")
@click.argument("shell", type=click.Choice(_SHELLS))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the script that makes SHELL complete verbs, options and names of models.

    Put it where the shell looks: for bash ~/.local/share/bash-completion/completions/localllm, for zsh a folder of
    $fpath as _localllm, for fish ~/.config/fish/completions/localllm.fish.
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    root = context.find_root()
    assert kind is not None
    if shell == "bash":
        kind = type("BashCompletion", (kind,), {"source_template": _BASH})
    click.echo(kind(root.command, {}, str(root.info_name), "_LOCALLLM_COMPLETE").source())
