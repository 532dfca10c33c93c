"""`localllm knowledge`: folders of documents added, listed, read anew, searched and removed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack, ExitStack, closing
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from app.cli.options import option, options, setting_options
from app.cli.output.format import print_json
from app.common.terminal import counted, printable, printable_line, quoted_name
from app.settings.settings import Settings, load_settings
from quantizer.system.errors import UsageError, UserError
from quantizer.system.files import is_folder

if TYPE_CHECKING:
    from app.knowledge.models import EmbedderIdentity
    from app.knowledge.reading import ReadProgress
    from app.knowledge.search import Found, Hit
    from app.knowledge.store import Folder, KnowledgeStore

_EXCERPT_CHARACTERS = 300
# What draws a bar takes as long to import as a changed file to read, or two passages to embed.
_SHOWN_AFTER_S, _FEW_PASSAGES = 0.3, 4
_NO_EMBEDDER = "No embedding model is in the library: passages are found by words alone. See `localllm help knowledge`."
_STAYS = "What was read stays; `localllm knowledge update` goes on."


@dataclass(frozen=True, slots=True)
class _Updated:
    """What reading a folder did, as `--json` prints it. `problem` says why it was not read."""

    path: str
    n_read: int = 0
    n_unchanged: int = 0
    n_left_out: int = 0
    n_gone: int = 0
    n_passages: int = 0
    problem: str = ""

    @classmethod
    def of(cls, folder: Folder, progress: ReadProgress) -> _Updated:
        return cls(
            str(folder.path),
            progress.n_read,
            progress.n_unchanged,
            progress.n_left_out,
            progress.n_gone,
            progress.n_passages,
        )


@click.group(epilog="Example: localllm knowledge add ~/papers")
def knowledge() -> None:
    """Make folders of documents searchable, by words and by meaning.

    A chat searches them with the tool `knowledge` (/tools on knowledge). Nothing leaves this machine.
    """


_some_folders = click.argument("folders", nargs=-1, metavar="[FOLDER...]", type=click.Path(path_type=Path))
_folders = click.argument("folders", nargs=-1, required=True, metavar="FOLDER...", type=click.Path(path_type=Path))


@knowledge.command()
@_folders
@setting_options("embedder")
@options("wants_json")
def add(folders: tuple[Path, ...], embedder: str | None, *, wants_json: bool) -> int:
    """Read the documents in each FOLDER and below: PDF, Word, HTML, Markdown, text, notebooks, tables.

    Hidden files and files that may hold secrets are left out, and so are links; `ls --left-out` says what and why.
    Ctrl-C keeps what was read.
    """
    from app.knowledge.choices import add_folder

    settings = load_settings({"embedder": embedder})
    with _store() as store, store.writing_alone():
        added = [add_folder(store, path, settings) for path in folders]
        return _update(store, added, settings, wants_json=wants_json)


@knowledge.command()
@_some_folders
@setting_options("embedder")
@options("wants_json")
def update(folders: tuple[Path, ...], embedder: str | None, *, wants_json: bool) -> int:
    """Read what is new or changed in each FOLDER, or in all, and forget what is gone."""
    with _store() as store, store.writing_alone():
        known = _known(store, folders) if folders else store.folders()
        if not known:
            raise UsageError("No folder was added.", "`localllm knowledge add FOLDER` adds one.")
        return _update(store, known, load_settings({"embedder": embedder}), wants_json=wants_json)


@knowledge.command("ls")
@click.option("--left-out", is_flag=True, help="List what was left out, and why.")
@options("wants_json")
def list_folders(*, left_out: bool, wants_json: bool) -> None:
    """List the folders: files that were read, left out, passages."""
    with _store() as store:
        summaries = store.summaries()
        missing = {str(folder.path): list(store.left_out(folder)) for folder in store.folders() if left_out}
    if wants_json:
        rows = [asdict(summary) for summary in summaries]
        for row in rows if left_out else ():
            row["left_out"] = [{"path": path, "reason": reason} for path, reason in missing[row["path"]]]
        print_json(rows)
        return
    if not summaries:
        click.echo("No folder was added: `localllm knowledge add FOLDER`.", err=True)
    for summary in summaries:
        moment = datetime.fromtimestamp(summary.updated_ms / 1000, UTC).astimezone()
        when = f"{moment:%Y-%m-%d %H:%M}" if summary.updated_ms else "not wholly read yet"
        by_meaning = f"{summary.n_embedded:,} of them by meaning" if summary.n_embedded else "by words alone"
        click.echo(
            f"{quoted_name(summary.path)}  {counted(summary.n_files, 'file')}, {summary.n_left_out:,} left out,"
            f" {counted(summary.n_passages, 'passage')} ({by_meaning}), {when}"
        )
        for path, reason in missing.get(summary.path, ()):
            click.echo(f"    {quoted_name(path)}: {printable_line(reason)}")


@knowledge.command()
@click.argument("words", nargs=-1, required=True)
@option("limit", most=100, default=5)
@setting_options("reranker")
@options("wants_json")
def search(words: tuple[str, ...], limit: int, reranker: str | None, *, wants_json: bool) -> None:
    """Print the passages that fit WORDS best, a question or a few words, with file and page."""
    settings = load_settings({"reranker": reranker})
    found = asyncio.run(_search(settings, " ".join(words), limit))
    for notice in found.notices:
        click.echo(printable(notice), err=True)
    if wants_json:
        print_json([_row(hit) for hit in found.hits])
        return
    if not found.hits:
        click.echo("Nothing was found.", err=True)
    for number, hit in enumerate(found.hits, start=1):
        ranks = [f"{name} {rank}" for name, rank in (("words", hit.word_rank), ("meaning", hit.vector_rank)) if rank]
        click.echo(f"{number}. {hit.place}  [{hit.score:.4f}: {', '.join(ranks)}]")
        excerpt = " ".join(hit.passage.passage.text.split())
        click.echo(f"   {printable(excerpt[:_EXCERPT_CHARACTERS])}{'…' if len(excerpt) > _EXCERPT_CHARACTERS else ''}")


@knowledge.command()
@_folders
@options("wants_json")
def rm(folders: tuple[Path, ...], *, wants_json: bool) -> None:
    """Forget each FOLDER and what was read of it. The documents stay."""
    with _store() as store, store.writing_alone():
        forgotten = _known(store, folders)
        for folder in forgotten:
            store.remove_folder(folder)
            if not wants_json:
                click.echo(f"Forgotten: {quoted_name(str(folder.path))}. The documents are untouched.")
    if wants_json:
        print_json([str(folder.path) for folder in forgotten])


def _store() -> KnowledgeStore:
    from app.knowledge.store import KnowledgeStore

    return KnowledgeStore(load_settings().data_dir)


def _known(store: KnowledgeStore, paths: Sequence[Path]) -> list[Folder]:
    """Return the folders that were added as `paths`, also where they are no longer there. Raises UsageError."""
    by_path = {folder.path: folder for folder in store.folders()}
    found = []
    for path in paths:
        folder = by_path.get(path.absolute()) or by_path.get(path.resolve())
        if folder is None:
            names = ", ".join(quoted_name(str(each)) for each in by_path) or "none"
            raise UsageError(f"{path} was not added.", f"Folders: {names}.")
        found.append(folder)
    return found


def _update(store: KnowledgeStore, folders: Sequence[Folder], settings: Settings, *, wants_json: bool) -> int:
    """Read folders one after the other, then compute vectors; return the exit status, 1 where a folder was not read."""
    try:
        done = [_read(store, folder, settings) for folder in folders]
        if not wants_json:
            for updated in done:
                click.echo(printable(_sentence(updated)))
        _embed(store, settings)
    except KeyboardInterrupt:
        click.echo(_STAYS, err=True)
        raise
    if wants_json:
        print_json(done)
    return int(any(updated.problem for updated in done))


def _read(store: KnowledgeStore, folder: Folder, settings: Settings) -> _Updated:
    from app.knowledge.choices import own_folders
    from app.knowledge.reading import ReadProgress, read_folder
    from quantizer.system.errors import StorageError

    progress, shown, begun_s = ReadProgress(), None, time.monotonic()
    try:
        with ExitStack() as stack:
            steps = stack.enter_context(closing(read_folder(store, folder, own_folders(settings))))
            for progress in steps:
                if shown is None and time.monotonic() - begun_s >= _SHOWN_AFTER_S:
                    from app.cli.output.progress import Shown

                    shown = stack.enter_context(Shown(f"Reading {folder.path.name}", None))
                if shown is not None:
                    shown.bar.update(n_done=progress.n_seen)
    except StorageError as error:
        if is_folder(folder.path):  # else the disk is full, say, which ends all
            raise
        click.echo(printable(str(error)), err=True)
        return _Updated(str(folder.path), problem=error.cause)
    return _Updated.of(folder, progress)


def _sentence(updated: _Updated) -> str:
    name = quoted_name(updated.path)
    if updated.problem:
        return f"{name}: not read; what was read of it before stays."
    parts = (
        f"{counted(updated.n_read, 'file')} read",
        f"{updated.n_unchanged:,} as before" if updated.n_unchanged else "",
        f"{updated.n_left_out:,} left out" if updated.n_left_out else "",
        f"{updated.n_gone:,} gone" if updated.n_gone else "",
    )
    return f"{name}: {', '.join(filter(None, parts))}; {counted(updated.n_passages, 'new passage')}."


def _embed(store: KnowledgeStore, settings: Settings) -> None:
    """Compute the vectors of passages that have none, by the embedder of the settings or of the library."""
    from app.knowledge.choices import NO_EMBEDDER, choose_embedder

    if settings.embedder == NO_EMBEDDER:
        return
    identity = choose_embedder(store.embedder(), settings)
    if identity is None:
        click.echo(_NO_EMBEDDER, err=True)
        return
    if n_removed := store.use_embedder(identity):
        click.echo(
            printable(f"{counted(n_removed, 'vector')} of another embedding model: made anew by {identity.model}."),
            err=True,
        )
    if n_waiting := store.n_without_vector():
        asyncio.run(_embed_waiting(store, settings, identity, n_waiting))


async def _embed_waiting(store: KnowledgeStore, settings: Settings, identity: EmbedderIdentity, n_waiting: int) -> None:
    from app.cli.resources import show_notices
    from app.client.launcher import load_model, open_service
    from app.knowledge.embedding import embed_passages

    async with open_service(settings, identity.model, keeps=True) as client:
        show_notices(client)
        await load_model(client, identity.model, when_unfit=settings.when_unfit)
        with ExitStack() as stack:
            meter = None
            if n_waiting > _FEW_PASSAGES:
                from app.cli.output.progress import Meter

                meter = stack.enter_context(Meter(f"Embedding by {identity.model}", n_waiting))
            async for progress in embed_passages(store, client, identity):
                if meter is not None:
                    meter.bar.update(n_done=progress.n_done)


async def _search(settings: Settings, question: str, limit: int) -> Found:
    """Search with the models of the service, which is started where vectors need it."""
    from app.client.launcher import open_service
    from app.knowledge.search import search
    from app.knowledge.store import KnowledgeStore

    with KnowledgeStore(settings.data_dir) as store:
        embedder = store.embedder() if store.folders() else None
    model = embedder.model if embedder is not None else settings.reranker
    async with AsyncExitStack() as stack:
        client = None
        if model:
            try:
                client = await stack.enter_async_context(open_service(settings, model, keeps=True))
            except UserError as error:  # words alone find something too
                click.echo(printable(str(error)), err=True)
        return await search(settings.data_dir, question, client, limit=limit, reranker=settings.reranker)


def _row(hit: Hit) -> dict[str, object]:
    passage = hit.passage.passage
    return {
        "path": str(hit.passage.path),
        "page": passage.page,
        "heading": passage.heading,
        "begin": passage.begin,
        "end": passage.end,
        "text": passage.text,
        "score": hit.score,
        "word_rank": hit.word_rank,
        "vector_rank": hit.vector_rank,
        "has_changed": hit.has_changed,
    }
