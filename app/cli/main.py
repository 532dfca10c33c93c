"""The command `localllm`: which verbs there are, and what a failure looks like.

Owns the table of verbs and the exit statuses. A verb's module is imported when it is called: help must not wait for
what a verb needs.
"""

from __future__ import annotations

import errno
import importlib
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

import click
from click.shell_completion import CompletionItem

from app import __version__
from app.common.standard_streams import discard_output, open_missing_streams, print_error, say_no_more
from app.common.terminal import printable
from quantizer.system.errors import StorageError, UsageError, UserError
from quantizer.system.faults import system_fault
from quantizer.system.memory_limit import ProcessBytes, check_memory_limit, save_address_space

if TYPE_CHECKING:
    from app.cli.output.format import JobEvents
    from app.cli.prompts import UserInterface


_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS}  # a disk, a quota, `ulimit -f`, a mount
INTERRUPTED = 130  # 128 + SIGINT


@dataclass(frozen=True, slots=True)
class _Verb:
    """Where a command is defined, as module:attribute, and what it is for."""

    place: str
    help: str


_VERBS = {
    "chat": _Verb("app.cli.verbs.chat:chat", "Chat, in the full screen or in the terminal's scrollback."),
    "run": _Verb("app.cli.verbs.run:run", "Run a prompt, or an unsaved chat."),
    "transcribe": _Verb(
        "app.cli.verbs.transcribe:transcribe", "Write down what is said in a sound, or make subtitles."
    ),
    "speak": _Verb("app.cli.verbs.speak:speak", "Say a text aloud, into a sound file."),
    "chats": _Verb("app.cli.verbs.chats:chats", "List, search, export and import chats."),
    "knowledge": _Verb("app.cli.verbs.knowledge:knowledge", "Search folders of your documents, by words and meaning."),
    "serve": _Verb("app.cli.verbs.service:serve", "Serve models to editors and programs."),
    "stop": _Verb("app.cli.verbs.service:stop", "Stop your running service."),
    "service": _Verb("app.cli.verbs.service:login_service_verbs", "Start the service when you log in."),
    "launch": _Verb("app.cli.verbs.launch:launch", "Start a coding agent (claude, codex, opencode …) with your model."),
    "ps": _Verb("app.cli.verbs.service:ps", "List the models of a running service."),
    "jobs": _Verb("app.cli.verbs.service:jobs", "List, watch and cancel jobs of a running service."),
    "key": _Verb("app.cli.verbs.service:key", "Show, create and remove API keys."),
    "acp": _Verb("app.cli.verbs.acp:acp", "Let an editor chat with your model, by the Agent Client Protocol."),
    "mcp": _Verb("app.cli.verbs.mcp:mcp", "List, add, test and log in to MCP servers; serve as one."),
    "pull": _Verb("app.cli.verbs.hub:pull", "Download a model from the Hugging Face hub or any URL."),
    "quantize": _Verb("app.cli.verbs.quantize:quantize", "Convert and quantize a checkpoint or a GGUF."),
    "imatrix": _Verb("app.cli.verbs.quantize:imatrix", "Compute an importance matrix."),
    "eval": _Verb("app.cli.verbs.quantize:evaluate", "Measure perplexity and the loss from quantization."),
    "tune": _Verb("app.cli.verbs.plan:tune", "Measure the fastest settings for a model."),
    "bench": _Verb("app.cli.verbs.bench:bench", "Benchmark a model, alone or against another."),
    "batch": _Verb("app.cli.verbs.batch:batch", "Answer a file of requests."),
    "plan": _Verb("app.cli.verbs.plan:plan", "Show whether a model fits, how fast it runs, and what would help."),
    "search": _Verb("app.cli.verbs.hub:search", "Search the hub for models that fit this machine."),
    "outdated": _Verb("app.cli.verbs.hub:outdated", "Ask the hub for newer revisions of your models."),
    "recommend": _Verb("app.cli.verbs.hub:recommend", "Recommend models for this machine."),
    "doctor": _Verb("app.cli.verbs.plan:doctor", "Check what this machine can run."),
    "ls": _Verb("app.cli.verbs.library:ls", "List the models on this machine."),
    "show": _Verb("app.cli.verbs.library:show", "Show the metadata of a model."),
    "import": _Verb("app.cli.verbs.library:import_model", "Import a model without a second copy."),
    "cp": _Verb("app.cli.verbs.library:cp", "Give a model a second name."),
    "rm": _Verb("app.cli.verbs.library:rm", "Remove models from the library."),
    "verify": _Verb("app.cli.verbs.library:verify", "Verify model checksums."),
    "prune": _Verb("app.cli.verbs.library:prune", "Delete stale downloads and caches."),
    "forget": _Verb("app.cli.verbs.library:forget", "Delete chats and everything derived from them."),
    "uninstall": _Verb("app.cli.verbs.uninstall:uninstall", "Remove all that localllm keeps on this machine."),
    "help": _Verb("app.cli.verbs.help:show_help", "Show a page of the user's guide."),
    "completion": _Verb("app.cli.verbs.help:completion", "Print a shell completion script."),
}


# Verbs of Ollama, LM Studio and llama.cpp.
_ELSEWHERE = {
    "list": "ls",
    "get": "pull",
    "download": "pull",
    "create": "import",
    "start": "serve",
    "server": "serve",
    "delete": "rm",
    "remove": "rm",
    "convert": "quantize",
    "benchmark": "bench",
    "info": "show",
    "update": "outdated",
    "upgrade": "outdated",
}


def _hint(word: str) -> str:
    """Return what may have been meant, with a space before it; nothing where nothing is near."""
    if word.lower().endswith(".gguf"):
        return f" To talk with a file: localllm run {printable(word)}"
    import difflib  # rarely needed

    near = difflib.get_close_matches(word, _VERBS, n=1)
    meant = _ELSEWHERE.get(word.lower()) or (near[0] if near else "")
    return f" Did you mean `localllm {meant}`?" if meant else ""


class _Verbs(click.Group):
    """Imports a verb when it is called, and lists all of them without importing any."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(_VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        verb = _VERBS.get(cmd_name)
        if verb is None:
            return None
        module, _, attribute = verb.place.partition(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the verb; one that is none may be what another program calls it, or a file."""
        if args and self.get_command(ctx, args[0]) is None:
            ctx.fail(f"There is no command {args[0]!r}.{_hint(args[0])}")
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        offered = [CompletionItem(name, help=verb.help) for name, verb in _VERBS.items() if name.startswith(incomplete)]
        return offered + click.Command.shell_complete(self, ctx, incomplete)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Take the app's settings too: they come here only where something is wrong with them, or with their place."""
        own = {"-h", "--help", *(flag for parameter in self.params for flag in parameter.opts)}
        if args and args[0].startswith("-") and args[0] not in own:
            from app.cli.options import all_settings

            all_settings(self)
        return super().parse_args(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, verb.help) for name, verb in _VERBS.items()])


@click.group(cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "-V", "--version", message="localllm %(version)s")
@click.pass_context
def _cli(context: click.Context, /, **settings: object) -> None:
    """Chat with language models on your own machine. Without a command it starts the terminal app, which takes every
    setting as an option: localllm --ctx 8192. See `localllm help settings`."""
    if given := [name for name, value in settings.items() if value is not None]:
        flag, verb = f"--{given[0].replace('_', '-')}", context.invoked_subcommand
        raise UsageError(f"{flag} is in the wrong place.", f"Put it behind the command: localllm {verb} {flag} ….")


def main(
    args: Sequence[str] | None = None, events: JobEvents | None = None, interface: UserInterface | None = None
) -> NoReturn:
    """Run the command line `args` (the process's own when None) and exit: 0 done, 1 failed, 2 wrong use. With `events`
    it is a job that reports its progress and failure there. An `interface` runs chats at a terminal."""
    sys.exit(_status(args, events, interface))


def _status(args: Sequence[str] | None, events: JobEvents | None, interface: UserInterface | None) -> int:
    words = list(args) if args is not None else None
    open_missing_streams()
    save_address_space()
    try:
        check_memory_limit("command", ProcessBytes.COMMAND)
        # click returns the status of what left early, and what the verb returned where none did: nothing
        left = _cli.main(args=words, prog_name="localllm", standalone_mode=False, obj=events or interface)
        sys.stdout.flush()
    except click.ClickException as error:
        with suppress(OSError):  # stderr takes no more
            error.show()
        if events:
            events.failed(UsageError(error.format_message()))
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        return INTERRUPTED
    except BrokenPipeError:
        discard_output()
        return 1  # as click ends when it meets the broken pipe first
    except (UserError, OSError, MemoryError, RuntimeError, ImportError) as error:
        fault = error if isinstance(error, UserError) else _system_fault(error)
        if fault is None:
            raise
        if fault is not error:
            discard_output()  # it may be what failed
            say_no_more()
        print_error(f"Error: {printable(str(fault))}")  # it may quote a file or a hub
        if events:
            events.failed(fault)
        return fault.exit_status
    return int(left or 0)


def _system_fault(error: Exception) -> UserError | None:
    """Return the error for what the operating system refused, None for a bug."""
    fault = system_fault("command", error)
    if fault and isinstance(error, OSError) and error.errno in _FULL and not error.filename:
        return StorageError(f"The output cannot be written: {error.strerror}.", fault.remedy)
    return fault


if __name__ == "__main__":
    main()
