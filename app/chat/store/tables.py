"""The tables of chats and messages: creating, listing, changing and deleting them; a deleted chat can be restored.

When a method returns, what it wrote is on the disk.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from app.chat.conversation import (
    Attachment,
    Chat,
    ChatSettings,
    Message,
    MessageContent,
    MessageState,
    WrittenElsewhereError,
    call_text,
)
from app.chat.store.attachment_files import release, use_in_message
from app.chat.store.database import (
    CHAT_COLUMNS,
    attachments_json,
    calls_json,
    chat_columns,
    chat_of,
    insert,
    message_columns,
    message_of,
    now_ms,
    result_json,
    settings_json,
    sources_json,
    storable,
)
from app.chat.store.search import ANYTHING, ChatFilter
from app.chat.store.writers import Writers, mark_writer
from app.common.database import Database
from app.protocol.chat import Source, ToolCall
from app.protocol.codec import decode
from app.protocol.status import LEAST_MEASURED_TOKENS, AnswerRecord
from app.tools.tool import ToolResult
from quantizer.system.errors import UserError

PAGE_SIZE = 50
PURGE_AFTER_MS = 7 * 24 * 3600 * 1000  # for a week a deleted chat can be restored
_MOST_VARIABLES = 900  # of a statement: SQLite's least limit is 999
_PLACE = ("pinned", "updated", "id")
_BEFORE_ALL = (2, 0, 0)  # a position in the order below, before every chat
_ORDER = "is_pinned DESC, updated_ms DESC, id DESC"


class UnknownChatError(UserError):
    """An id without a chat, or of a deleted one."""

    def __init__(self, chat_id: int) -> None:
        super().__init__(f"There is no chat {chat_id}.", "`localllm chats list` shows all chats.")


def touch(connection: sqlite3.Connection, chat_id: int) -> None:
    """Make a chat the one that was used last, of now: or just after the others, where the clock was put back."""
    statement = """UPDATE chats SET updated_ms = max(:now, updated_ms,
        (SELECT coalesce(max(updated_ms), 0) + 1 FROM chats WHERE id <> :id)) WHERE id = :id"""
    connection.execute(statement, {"now": now_ms(), "id": chat_id})


class Chats:
    """The table of chats. Methods that take the id of a chat raise UnknownChatError for an unknown one."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def create(self, *, title: str = "", model: str = "", settings: ChatSettings | None = None) -> Chat:
        chat = Chat(id=0, title=title, model=model, settings=settings or ChatSettings())
        with self._database.writing() as connection:
            chat_id = insert(connection, "chats", chat_columns(chat, now_ms()))
            touch(connection, chat_id)
            return self.get(chat_id)

    def get(self, chat_id: int) -> Chat:
        found = self._select("deleted_ms IS NULL AND id = :id", {"id": chat_id})
        if not found:
            raise UnknownChatError(chat_id)
        return found[0]

    def page(
        self,
        *,
        after: Chat | None = None,
        archived: bool = False,
        chat_filter: ChatFilter = ANYTHING,
        limit: int = PAGE_SIZE,
    ) -> list[Chat]:
        """Return up to `limit` chats that follow `after` in the list: pinned ones first, then the newest."""
        place = (after.is_pinned, after.updated_ms, after.id) if after else _BEFORE_ALL
        conditions, values = chat_filter.conditions("chats.updated_ms")
        values |= {"archived": archived, "limit": limit} | dict(zip(_PLACE, place, strict=True))
        return self._select(
            f"{conditions} AND is_archived = :archived AND (is_pinned, updated_ms, id) < (:pinned, :updated, :id)"
            f" ORDER BY {_ORDER} LIMIT :limit",
            values,
        )

    def message_counts(self, chat_ids: Sequence[int]) -> dict[int, int]:
        """Return how many messages each of these chats has, in all its branches; none is left out."""
        counts = {}
        with self._database.reading() as connection:
            for begin in range(0, len(chat_ids), _MOST_VARIABLES):
                some = chat_ids[begin : begin + _MOST_VARIABLES]
                marks = ", ".join("?" * len(some))
                statement = f"SELECT chat_id, count(*) FROM messages WHERE chat_id IN ({marks}) GROUP BY chat_id"  # noqa: S608
                counts.update(dict(map(tuple, connection.execute(statement, some))))
        return counts

    def models(self) -> list[str]:
        """Return the models that answered last in a chat, by name."""
        statement = "SELECT DISTINCT model FROM chats WHERE deleted_ms IS NULL AND model <> '' ORDER BY model"
        with self._database.reading() as connection:
            return [str(row["model"]) for row in connection.execute(statement)]

    def recent_models(self) -> dict[str, int]:
        """Return the models that answered last in a chat with the time of its latest change, the latest first."""
        statement = """SELECT model, max(updated_ms) AS used_ms FROM chats WHERE deleted_ms IS NULL AND model <> ''
            GROUP BY model ORDER BY used_ms DESC"""
        with self._database.reading() as connection:
            return {str(row["model"]): int(row["used_ms"]) for row in connection.execute(statement)}

    def rename_model(self, formers: Collection[str], name: str) -> None:
        """Give a model that has one of the `formers` names another one: in each chat, deleted ones too, and in what it
        answered there."""
        marks = ", ".join("?" * len(formers))
        with self._database.writing() as connection:
            for table in ("chats", "messages"):
                statement = f"UPDATE {table} SET model = ? WHERE model IN ({marks})"  # noqa: S608  (names of ours)
                connection.execute(statement, (storable(name), *map(storable, formers)))

    def latest(self) -> Chat | None:
        """Return the chat with the latest message, None without any."""
        newest = "deleted_ms IS NULL AND is_archived = 0 ORDER BY updated_ms DESC, id DESC LIMIT 1"
        return next(iter(self._select(newest, {})), None)

    def rename(self, chat_id: int, title: str) -> None:
        self._set(chat_id, "title", storable(title))

    def set_title(self, chat_id: int, title: str, *, former: str) -> None:
        """Change the title of a chat if it is still `former`: the user's own title is kept."""
        statement = "UPDATE chats SET title = ? WHERE id = ? AND title = ? AND deleted_ms IS NULL"
        with self._database.writing() as connection:
            connection.execute(statement, (storable(title), chat_id, storable(former)))

    def pin(self, chat_id: int, is_pinned: bool) -> None:
        """Pin a chat to the top of the list, or unpin it."""
        self._set(chat_id, "is_pinned", is_pinned)

    def archive(self, chat_id: int, is_archived: bool) -> None:
        """Move a chat to the archive, or back."""
        self._set(chat_id, "is_archived", is_archived)

    def use_model(self, chat_id: int, model: str) -> None:
        self._set(chat_id, "model", storable(model))

    def configure(self, chat_id: int, settings: ChatSettings) -> None:
        self._set(chat_id, "settings", settings_json(settings))

    def delete(self, chat_id: int) -> None:
        """Remove a chat from every list and search; `restore` brings it back until it is purged."""
        self._set(chat_id, "deleted_ms", now_ms())

    def restore(self, chat_id: int) -> Chat:
        """Restore a deleted chat; another stays unchanged."""
        with self._database.writing() as connection:
            connection.execute("UPDATE chats SET deleted_ms = NULL WHERE id = ?", (chat_id,))
            return self.get(chat_id)

    def deleted(self) -> list[Chat]:
        """Return the chats that can be restored."""
        return self._select("deleted_ms IS NOT NULL", {})

    def purge_deleted(self, deleted_before_ms: int) -> int:
        """Purge chats that were deleted before a time, in milliseconds since 1970; return how many."""
        doomed = "SELECT id FROM chats WHERE deleted_ms < ?"
        with self._database.writing() as connection:
            connection.execute(f"UPDATE chats SET leaf_id = NULL WHERE id IN ({doomed})", (deleted_before_ms,))  # noqa: S608
            connection.execute(f"DELETE FROM messages WHERE chat_id IN ({doomed})", (deleted_before_ms,))  # noqa: S608
            return connection.execute("DELETE FROM chats WHERE deleted_ms < ?", (deleted_before_ms,)).rowcount

    def _select(self, rest: str, values: Mapping[str, object]) -> list[Chat]:
        statement = f"SELECT {CHAT_COLUMNS} FROM chats WHERE {rest}"  # noqa: S608  (columns of ours)
        with self._database.reading() as connection:
            return [chat_of(row) for row in connection.execute(statement, values)]

    def _set(self, chat_id: int, column: str, value: object) -> None:
        """Set only one column, so that two windows with one chat do not overwrite each other's changes."""
        statement = f"UPDATE chats SET {column} = ? WHERE id = ? AND deleted_ms IS NULL"  # noqa: S608  (a name of ours)
        with self._database.writing() as connection:
            if not connection.execute(statement, (value, chat_id)).rowcount:
                raise UnknownChatError(chat_id)


_NEW: Mapping[str, int] = {}  # the place of a message that had no id before

_BELOW = """WITH RECURSIVE below (id) AS (
    SELECT id FROM messages WHERE id = :id AND chat_id = :chat_id
    UNION ALL
    SELECT messages.id FROM messages JOIN below ON messages.chat_id = :chat_id AND messages.parent_id = below.id
)"""


class Sessions:
    """The names by which editors know the chats that they began."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def keep(self, session_id: str, chat_id: int) -> None:
        """Store that a session is a chat."""
        with self._database.writing() as connection:
            values = (storable(session_id), chat_id)
            connection.execute("INSERT OR REPLACE INTO sessions (id, chat_id) VALUES (?, ?)", values)

    def chat_of(self, session_id: str) -> int | None:
        """Return the id of a session's chat, which may be deleted; None for an unknown one."""
        with self._database.reading() as connection:
            values = (storable(session_id),)
            row = connection.execute("SELECT chat_id FROM sessions WHERE id = ?", values).fetchone()
        return None if row is None else int(row["chat_id"])

    def of_chats(self, chat_ids: Collection[int]) -> dict[int, str]:
        """Return a session of each chat that has one."""
        with self._database.reading() as connection:
            rows = connection.execute("SELECT id, chat_id FROM sessions").fetchall()
        return {int(row["chat_id"]): str(row["id"]) for row in rows if row["chat_id"] in chat_ids}


class Messages:
    """The table of messages. Raises StorageError for a missing chat or parent, and for an attachment that is not kept
    (`app.chat.store.attachment_files`)."""

    def __init__(self, database: Database, writers: Writers) -> None:
        self._database = database
        self._writers = writers

    def of(self, chat_id: int) -> tuple[Message, ...]:
        """Return all messages of a chat, every branch, parents before children."""
        with self._database.reading() as connection:
            rows = connection.execute("SELECT * FROM messages WHERE chat_id = ? ORDER BY id", (chat_id,))
            return tuple(message_of(row) for row in rows)

    def unknown(self, chat_id: int, known: Collection[int]) -> tuple[Message, ...]:
        """Return the messages of a chat whose ids are not `known`, parents before children."""
        with self._database.reading() as connection:
            ids = [row["id"] for row in connection.execute("SELECT id FROM messages WHERE chat_id = ?", (chat_id,))]
            found = (
                connection.execute("SELECT * FROM messages WHERE id = ?", (each,)).fetchone()
                for each in sorted(set(ids).difference(known))
            )
            return tuple(message_of(row) for row in found if row is not None)

    def recent_prompts(self, limit: int) -> list[str]:
        """Return the last `limit` messages of the user in any chat, each once, the latest last."""
        statement = """SELECT content FROM messages JOIN chats ON chats.id = chat_id
            WHERE role = 'user' AND deleted_ms IS NULL ORDER BY messages.id DESC LIMIT ?"""
        with self._database.reading() as connection:
            latest_first = [str(row["content"]) for row in connection.execute(statement, (limit,))]
        return list(dict.fromkeys(latest_first))[::-1]

    def recent_answers(self, limit: int) -> list[AnswerRecord]:
        """Return the figures of the last `limit` answers whose engine counted them, the latest first."""
        statement = """SELECT messages.model, messages.created_ms, stats FROM messages JOIN chats ON chats.id = chat_id
            WHERE role = 'assistant' AND state = 'finished' AND deleted_ms IS NULL
            AND json_extract(stats, '$.time_to_first_token_s') IS NOT NULL ORDER BY messages.id DESC LIMIT ?"""
        with self._database.reading() as connection:
            rows = connection.execute(statement, (limit,)).fetchall()
        found = (_answer_record(str(row["model"]), row["created_ms"] / 1000, json.loads(row["stats"])) for row in rows)
        return [record for record in found if record is not None]

    def add(self, chat_id: int, parent_id: int | None, message: MessageContent, window: str = "") -> Message:
        """Add a message after `parent_id` (None: at the beginning) and show the branch that ends with it. Without a
        time it is of now. The `window` goes on after it, if given. When this returns it is on the disk."""
        message = message if message.created_ms else replace(message, created_ms=now_ms())
        with self._database.writing() as connection:
            message_id = insert_message(connection, chat_id, parent_id, message)
            _show(connection, chat_id, message_id)
            touch(connection, chat_id)
            if window:
                mark_writer(connection, window, chat_id, message_id)
            return message_of(connection.execute("SELECT * FROM messages WHERE id = ?", (message_id,)).fetchone())

    def write(self, message_id: int, content: str, reasoning: str = "", calls: Sequence[ToolCall] = ()) -> None:
        """Store the text and the calls of a message so far; it stays partial, and its calls are not searched."""
        values = (storable(content), storable(reasoning), calls_json(calls), message_id)
        with self._database.writing() as connection:
            connection.execute("UPDATE messages SET content = ?, reasoning = ?, calls = ? WHERE id = ?", values)

    def finish(self, message_id: int, answer: MessageContent) -> None:
        """Store the text, calls, state and figures of an answer that has ended, and the model that wrote it if given:
        it may have had another name before it was loaded. When this returns it is on the disk."""
        names = ("content", "reasoning", "state", "stats", "calls", *(["model"] if answer.model else []))
        statement = f"UPDATE messages SET {', '.join(f'{name} = :{name}' for name in names)} WHERE id = :id"  # noqa: S608
        with self._database.writing() as connection:
            n_changed = connection.execute(statement, {**message_columns(answer), "id": message_id}).rowcount
            if n_changed:  # none of a chat that was purged meanwhile
                _index_calls(connection, message_id, answer.calls)
            _touch_chat_of(connection, message_id)

    def write_sources(self, message_id: int, sources: Iterable[Source]) -> None:
        """Store the passages that are sent with a question. When this returns they are on the disk."""
        with self._database.writing() as connection:
            connection.execute("UPDATE messages SET sources = ? WHERE id = ?", (sources_json(sources), message_id))

    def write_result(self, message_id: int, result: ToolResult) -> None:
        """Store how the call of a tool message is going, or that it was undone; its text and state stay. When this
        returns it is on the disk."""
        with self._database.writing() as connection:
            connection.execute("UPDATE messages SET result = ? WHERE id = ?", (result_json(result), message_id))

    def finish_call(
        self, message_id: int, content: str, result: ToolResult, attachments: Sequence[Attachment] = ()
    ) -> None:
        """Store the text and the result of a call that has ended, with its pictures and sounds, which are kept. When
        this returns they are on the disk."""
        values = (storable(content), result_json(result), MessageState.FINISHED.value, attachments_json(attachments))
        statement = "UPDATE messages SET content = ?, result = ?, state = ?, attachments = ? WHERE id = ?"
        with self._database.writing() as connection:
            if connection.execute(statement, (*values, message_id)).rowcount:  # none of a chat that was purged
                use_in_message(connection, message_id, attachments)
            _touch_chat_of(connection, message_id)

    def contents_of_changes(self) -> frozenset[str]:
        """Return the digests of all contents of files that the changes of stored calls name, of deleted chats too: what
        an undo may need (`app.tools.file_history`)."""
        with self._database.reading() as connection:
            rows = connection.execute("SELECT result FROM messages WHERE result <> ''")
            results = [decode(ToolResult, json.loads(row["result"])) for row in rows]
        changes = [change for result in results for change in result.changes]
        return frozenset(digest for change in changes for digest in (change.before, change.after) if digest)

    def show(self, chat_id: int, leaf_id: int | None) -> None:
        with self._database.writing() as connection:
            _show(connection, chat_id, leaf_id)

    def remove(self, chat_id: int, message_id: int) -> None:
        """Delete a message and its descendants; if it was shown, the branch ends before it. Raises
        WrittenElsewhereError, having deleted nothing, while another window goes on after one of them: what that one
        writes next would be lost."""
        place = {"chat_id": chat_id, "id": message_id}
        before = "(SELECT parent_id FROM messages WHERE id = :id)"
        with self._database.writing() as connection:  # in which no other window can begin
            below = connection.execute(f"{_BELOW} SELECT id FROM below", place)  # noqa: S608
            if self._writers.of_chat(chat_id).intersection(int(row["id"]) for row in below):
                raise WrittenElsewhereError
            connection.execute(
                f"{_BELOW} UPDATE chats SET leaf_id = {before} WHERE id = :chat_id AND leaf_id IN below",  # noqa: S608
                place,
            )
            files = connection.execute(f"{_BELOW} SELECT sha256 FROM used_files WHERE message_id IN below", place)  # noqa: S608
            release(connection, [str(row["sha256"]) for row in files])  # the removal may be undone
            connection.execute(f"{_BELOW} DELETE FROM messages WHERE id IN below", place)  # noqa: S608

    def restore(self, chat_id: int, removed: Iterable[Message], leaf_id: int | None) -> None:
        """Restore removed messages (parents before children) with their ids, and show the branch to `leaf_id`."""
        with self._database.writing() as connection:
            for message in removed:
                insert_message(connection, chat_id, message.parent_id, message, {"id": message.id})
            _show(connection, chat_id, leaf_id)


def _answer_record(model: str, at_s: float, stats: Mapping[str, object]) -> AnswerRecord | None:
    """Return an answer's figures; None for stats of another form, which an imported chat may have."""
    names = ("n_prompt_tokens", "n_cached_tokens", "n_output_tokens")
    n_prompt, n_cached, n_output = (value if isinstance(value := stats.get(name), int) else -1 for name in names)
    first_s, rate = stats.get("time_to_first_token_s"), stats.get("decode_tokens_per_s")
    if min(n_prompt, n_cached, n_output) < 0 or not isinstance(first_s, int | float):
        return None
    is_measured = isinstance(rate, int | float) and rate > 0 and n_output >= LEAST_MEASURED_TOKENS
    return AnswerRecord(
        model=model,
        at_s=at_s,
        n_prompt_tokens=n_prompt,
        n_cached_tokens=n_cached,
        n_output_tokens=n_output,
        first_token_s=float(first_s),
        prefill_tps=None,
        decode_tps=float(rate) if is_measured and isinstance(rate, int | float) else None,
    )


def insert_message(
    connection: sqlite3.Connection,
    chat_id: int,
    parent_id: int | None,
    message: MessageContent,
    former: Mapping[str, int] = _NEW,
) -> int:
    """Insert a message within the caller's transaction, with its `former` id if it had one, and return its id."""
    place = {**former, "chat_id": chat_id, "parent_id": parent_id}
    message_id = insert(connection, "messages", {**place, **message_columns(message)})
    use_in_message(connection, message_id, message.attachments)
    if message.calls:
        _index_calls(connection, message_id, message.calls)
    return message_id


def _index_calls(connection: sqlite3.Connection, message_id: int, calls: Iterable[ToolCall]) -> None:
    """Let a search find the words of a message's calls."""
    connection.execute("DELETE FROM call_texts WHERE message_id = ?", (message_id,))
    texts = [(message_id, storable(call_text(call))) for call in calls]
    connection.executemany("INSERT INTO call_texts (message_id, text) VALUES (?, ?)", texts)


def _touch_chat_of(connection: sqlite3.Connection, message_id: int) -> None:
    for row in connection.execute("SELECT chat_id FROM messages WHERE id = ?", (message_id,)).fetchall():
        touch(connection, row["chat_id"])


def _show(connection: sqlite3.Connection, chat_id: int, leaf_id: int | None) -> None:
    connection.execute("UPDATE chats SET leaf_id = ? WHERE id = ?", (leaf_id, chat_id))
