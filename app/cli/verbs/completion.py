"""`localllm completion`: what a shell needs to complete verbs, options and models at Tab."""

from __future__ import annotations

import click

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
