"""`localllm chats`: saved chats listed, searched, exported, imported."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import MISSING
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import click

from app.cli.options import option, options
from app.cli.output.format import print_json
from app.common.terminal import printable
from app.protocol.codec import encode
from app.protocol.errors import ServiceError
from app.settings.settings import load_settings
from quantizer.system.errors import UsageError
from quantizer.system.files import explained

if TYPE_CHECKING:
    from app.chat.conversation import Chat
    from app.chat.store.chat_store import ChatStore


_DAY = click.DateTime(["%Y-%m-%d"])
_chat_ids = click.argument("chat_ids", type=int, nargs=-1, required=True, metavar="ID...")


@click.group(epilog="Example: localllm chats search 'kv cache'")
def chats() -> None:
    """List, search, export and import chats."""


@chats.command("list")
@click.option("--archived", is_flag=True, help="List archived chats.")
@option("limit", most=10_000, default=50)
@options("wants_json")
def list_chats(archived: bool, limit: int, wants_json: bool) -> None:
    """List chats: pinned ones first, then the newest."""
    with _store() as store:
        page = store.chats.page(archived=archived, limit=limit)
        answering = store.writers.chats()
    if wants_json:
        print_json([{**encode(chat), "is_answering": chat.id in answering} for chat in page])
        return
    if not page:
        click.echo("There are no archived chats." if archived else "There are no chats yet.", err=True)
    for chat in page:
        marks = (("pinned", chat.is_pinned), ("answering", chat.id in answering))
        click.echo(f"{_line(chat)}{''.join(f'  ({mark})' for mark, is_set in marks if is_set)}")


@chats.command()
@click.argument("chat_id", type=int, metavar="ID")
@options("wants_json")
def show(chat_id: int, wants_json: bool) -> None:
    """Print a chat as Markdown, or with all its branches as JSON."""
    from app.chat.formats.documents import markdown
    from app.chat.formats.localllm import localllm_json

    with _store() as store:
        transcript = store.transcripts.read(chat_id)
        pieces = localllm_json([transcript], store.files.read) if wants_json else map(printable, markdown([transcript]))
        for piece in pieces:
            click.echo(piece, nl=False)


@chats.command()
@click.argument("words", nargs=-1, required=True)
@click.option("--model", help="Only chats with this model.")
@click.option("--since", type=_DAY, help="Only messages from this day on.")
@click.option("--until", type=_DAY, help="Only messages up to this day.")
@option("limit", most=10_000, default=50)
@options("wants_json")
def search(
    words: tuple[str, ...],
    model: str | None,
    since: datetime | None,
    until: datetime | None,
    limit: int,
    wants_json: bool,
) -> None:
    """Search titles and messages for all WORDS; the last one may be a prefix."""
    from app.chat.store.search import ChatFilter

    until_ms = _moment_ms(until + timedelta(days=1)) if until else None
    chat_filter = ChatFilter(model=model, since_ms=_moment_ms(since) if since else None, until_ms=until_ms)
    with _store() as store:
        hits = store.search.find(" ".join(words), chat_filter, limit=limit)
    if wants_json:
        print_json(hits)
        return
    if not hits:
        click.echo("No chat matches.", err=True)
    for hit in hits:
        click.echo(_line(hit.chat))
        if hit.message_id is not None:
            click.echo(f"        {printable(' '.join(hit.snippet.text.split()))}")


@chats.command()
@click.argument("chat_ids", type=int, nargs=-1, metavar="[ID...]")
@click.option("--all", "wants_all", is_flag=True, help="Export all chats, archived ones too.")
@click.option(
    "--format", "name", type=click.Choice(["markdown", "json", "html"]), default="markdown", show_default=True
)
@option("output", default=MISSING)
def export(chat_ids: tuple[int, ...], wants_all: bool, name: str, output: str) -> None:
    """Export chats to a file. Only JSON has all branches and can be imported again."""
    from app.chat.files import EXPORTS, export_to

    if bool(chat_ids) == wants_all:
        raise UsageError("There are no chats to export.", "Give ids, or --all.")
    with _store() as store:
        chosen = [chat.id for chat in _every(store)] if wants_all else chat_ids
        transcripts = (store.transcripts.read(chat_id) for chat_id in chosen)
        export_to(Path(output), EXPORTS[name](transcripts, store.files.read))
    click.echo(f"Chats in {printable(output)}: {len(chosen)}.")


@chats.command("import")
@click.argument("file", type=click.Path(path_type=Path))
@options("wants_json")
def import_chats(file: Path, wants_json: bool) -> None:
    """Import chats from FILE: JSON from localllm, ChatGPT or Open WebUI, or Ollama messages."""
    from app.chat.files import import_file

    with _store() as store:
        taken = import_file(file, store)
    if wants_json:
        print_json(taken)
        return
    click.echo(f"Imported chats: {len(taken.ids)}.")
    for fault in taken.skipped:
        click.echo(f"Skipped: {printable(f'{fault.place} {fault.why}')}.", err=True)


@chats.command()
@_chat_ids
def delete(chat_ids: tuple[int, ...]) -> None:
    """Delete chats. They can be restored for a week; their computed prefixes are deleted at once."""
    with _store() as store:
        for chat_id in chat_ids:
            store.chats.delete(chat_id)
        keys = [chat.prompt_cache_key for chat in store.chats.deleted()]
        with explained(
            "The chats are deleted, but what was computed of them is not", "`localllm forget --keep-chats` tries again."
        ):
            asyncio.run(_delete_prefixes(keys))
        store.purge_deleted()


@chats.command()
@_chat_ids
def restore(chat_ids: tuple[int, ...]) -> None:
    """Restore deleted chats."""
    with _store() as store:
        for chat_id in chat_ids:
            click.echo(_line(store.chats.restore(chat_id)))


async def _delete_prefixes(keys: list[str]) -> None:
    from app.chat.repository import delete_prefixes
    from app.client.launcher import running_service

    settings = load_settings()

    async def forget(keys: Sequence[str]) -> None:
        async with running_service(settings) as client:
            await client.forget_prefixes(keys)

    failure = await delete_prefixes(keys, settings.cache_dir, forget)
    if failure is not None and not isinstance(failure, ServiceError):  # that is: none runs
        click.echo(f"The running service keeps them in memory: {printable(str(failure))}", err=True)


def _store() -> ChatStore:
    from app.chat.store.chat_store import ChatStore

    return ChatStore(load_settings().data_dir)


def _every(store: ChatStore) -> Iterator[Chat]:
    for archived in (False, True):
        page = store.chats.page(archived=archived)
        while page:
            yield from page
            page = store.chats.page(after=page[-1], archived=archived)


def _line(chat: Chat) -> str:
    updated = datetime.fromtimestamp(chat.updated_ms / 1000, UTC).astimezone()
    return f"{chat.id:>6}  {updated:%Y-%m-%d %H:%M}  {printable(' '.join(chat.title.split())) or '(untitled)'}"


def _moment_ms(day: datetime) -> int:
    """Return the start of a local day in milliseconds since 1970."""
    return int(day.astimezone().timestamp() * 1000)
