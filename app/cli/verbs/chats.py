"""`localllm chats`: the conversations that are kept, listed, searched, exported, taken in from elsewhere."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import click

from app.cli.options import option, options
from app.terminal import printable
from quantizer.errors import UsageError

if TYPE_CHECKING:
    from app.chat.conversation import Chat, Transcript
    from app.chat.store import ChatStore

__all__ = ["chats"]

_DAY = click.DateTime(["%Y-%m-%d"])
_chat_ids = click.argument("chat_ids", type=int, nargs=-1, required=True, metavar="ID...")


@click.group(epilog="Example: localllm chats search 'kv cache'")
def chats() -> None:
    """List, search, export and import conversations."""


@chats.command("list")
@click.option("--archived", is_flag=True, help="List those that were archived.")
@option("limit", type=click.IntRange(1, 10_000), default=50)
@options("wants_json")
def list_chats(archived: bool, limit: int, wants_json: bool) -> None:
    """List conversations: pinned ones first, then the newest."""
    with _store() as store:
        page = store.chats.page(archived=archived, limit=limit)
    if wants_json:
        click.echo(json.dumps([asdict(chat) for chat in page]))
        return
    if not page:
        click.echo("No conversation is archived." if archived else "No conversation is kept yet.", err=True)
    for chat in page:
        click.echo(f"{_line(chat)}{'  (pinned)' if chat.is_pinned else ''}")


@chats.command()
@click.argument("chat_id", type=int, metavar="ID")
@options("wants_json")
def show(chat_id: int, wants_json: bool) -> None:
    """Print a conversation as Markdown, or with all its branches as JSON."""
    from app.chat.exporting import EXPORTS

    with _store() as store:
        transcript = store.transcripts.read(chat_id)
    for piece in EXPORTS["json" if wants_json else "markdown"]([transcript]):
        click.echo(piece if wants_json else printable(piece), nl=False)


@chats.command()
@click.argument("words", nargs=-1, required=True)
@click.option("--model", help="Only conversations with this model.")
@click.option("--since", type=_DAY, help="Only what was said on this day or later.")
@click.option("--until", type=_DAY, help="Only what was said on this day or earlier.")
@option("limit", type=click.IntRange(1, 10_000), default=50)
@options("wants_json")
def search(
    words: tuple[str, ...],
    model: str | None,
    since: datetime | None,
    until: datetime | None,
    limit: int,
    wants_json: bool,
) -> None:
    """Find conversations with all WORDS, in their titles or in what was said. The last one may be a beginning."""
    from app.chat.search import ChatFilter

    until_ms = _moment_ms(until + timedelta(days=1)) if until else None
    chat_filter = ChatFilter(model=model, since_ms=_moment_ms(since) if since else None, until_ms=until_ms)
    with _store() as store:
        hits = store.search.find(" ".join(words), chat_filter, limit=limit)
    if wants_json:
        click.echo(json.dumps([asdict(hit) for hit in hits]))
        return
    if not hits:
        click.echo("No conversation is like that.", err=True)
    for hit in hits:
        click.echo(_line(hit.chat))
        if hit.message_id is not None:
            click.echo(f"        {printable(' '.join(hit.snippet.text.split()))}")


@chats.command()
@click.argument("chat_ids", type=int, nargs=-1, metavar="[ID...]")
@click.option("--all", "wants_all", is_flag=True, help="Export every conversation, archived ones too.")
@click.option("--format", "name", type=click.Choice(["markdown", "json", "html"]), default="markdown")
@option("output", required=True)
def export(chat_ids: tuple[int, ...], wants_all: bool, name: str, output: Path) -> None:
    """Write conversations to a file; only JSON has all their branches, and can be imported again."""
    from app.chat.exporting import EXPORTS, export_to

    if bool(chat_ids) == wants_all:
        raise UsageError("Nothing says which conversations to export.", "Give their ids, or --all and none.")
    with _store() as store:
        chosen = [chat.id for chat in _every(store)] if wants_all else chat_ids
        export_to(output, EXPORTS[name](_transcripts(store, chosen)))
    click.echo(f"Conversations in {printable(str(output))}: {len(chosen)}.")


@chats.command("import")
@click.argument("file", type=click.Path(path_type=Path))
@options("wants_json")
def import_chats(file: Path, wants_json: bool) -> None:
    """Take in the conversations of FILE: JSON of localllm, ChatGPT, Open WebUI, or Ollama's messages."""
    from app.chat.importing import import_file

    with _store() as store:
        taken = import_file(file, store)
    if wants_json:
        click.echo(json.dumps(asdict(taken)))
        return
    click.echo(f"Conversations taken in: {len(taken.ids)}.")
    for fault in taken.skipped:
        click.echo(f"Left out: {printable(f'{fault.place} {fault.why}')}.", err=True)


@chats.command()
@_chat_ids
def delete(chat_ids: tuple[int, ...]) -> None:
    """Delete conversations; for a week they can be restored."""
    with _store() as store:
        for chat_id in chat_ids:
            store.chats.delete(chat_id)
        store.purge_deleted()


@chats.command()
@_chat_ids
def restore(chat_ids: tuple[int, ...]) -> None:
    """Bring deleted conversations back."""
    with _store() as store:
        for chat_id in chat_ids:
            click.echo(_line(store.chats.restore(chat_id)))


def _store() -> ChatStore:
    from app.chat.store import ChatStore
    from app.settings.settings import load_settings

    return ChatStore(load_settings().data_dir)


def _every(store: ChatStore) -> Iterator[Chat]:
    for archived in (False, True):
        page = store.chats.page(archived=archived)
        while page:
            yield from page
            page = store.chats.page(after=page[-1], archived=archived)


def _transcripts(store: ChatStore, chat_ids: tuple[int, ...] | list[int]) -> Iterator[Transcript]:
    for chat_id in chat_ids:
        yield store.transcripts.read(chat_id)


def _line(chat: Chat) -> str:
    said = datetime.fromtimestamp(chat.updated_ms / 1000, UTC).astimezone()
    return f"{chat.id:>6}  {said:%Y-%m-%d %H:%M}  {printable(' '.join(chat.title.split())) or '(untitled)'}"


def _moment_ms(day: datetime) -> int:
    """The beginning of a day here, in milliseconds since 1970."""
    return int(day.astimezone().timestamp() * 1000)
