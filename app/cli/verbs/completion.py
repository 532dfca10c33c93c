"""`localllm completion`: what a shell needs to complete verbs, options and models at Tab."""

from __future__ import annotations

import click

__all__ = ["completion"]

_SHELLS = ("bash", "zsh", "fish")


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
    click.echo(kind(root.command, {}, str(root.info_name), "_LOCALLLM_COMPLETE").source())
