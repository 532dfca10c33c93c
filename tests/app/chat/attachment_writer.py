"""A process that attaches pictures to chats or removes unused ones, endlessly: the victim of kills.

    python attachment_writer.py DATA_DIR write|sweep SEED

A writer prints the id of each message that was acknowledged. A sweeper's clock is two days ahead: nothing but the rows
of messages and drafts protects a file from it.
"""

from __future__ import annotations

import hashlib
import random
import sys
from pathlib import Path

from app.chat.conversation import Attachment, MediaFile, MessageContent
from app.chat.store import attachment_files
from app.chat.store.chat_store import ChatStore
from app.chat.store.database import now_ms
from quantizer.system.errors import StorageError

__all__ = ["content_of", "write"]


def content_of(number: int) -> bytes:
    """Return one of a few contents, so that messages share files."""
    return bytes([number]) * (2_000 + number)


def write(store: ChatStore, chance: random.Random) -> None:
    """Attach, ask, remove messages and delete chats until killed."""
    chat = store.chats.create()
    while True:
        content = content_of(chance.randrange(6))
        file = MediaFile(hashlib.sha256(content).hexdigest(), "image/png", len(content))
        attachment = Attachment("photo.png", "", "image/png", "", (file,))
        store.files.keep({file.sha256: content})
        try:
            question = MessageContent(role="user", content="What is this?", attachments=(attachment,))
            message = store.messages.add(chat.id, None, question)
        except StorageError:  # a sweeper removed the file before the message named it
            continue
        print(message.id, flush=True)
        if chance.random() < 0.3:
            store.messages.remove(chat.id, message.id)
            print(-message.id, flush=True)
        if chance.random() < 0.02:
            store.chats.delete(chat.id)
            store.chats.purge_deleted(1 << 60)
            chat = store.chats.create()
            print(0, flush=True)


def sweep(store: ChatStore) -> None:
    """Remove what is not used until killed."""
    attachment_files.now_ms = lambda: now_ms() + 2 * attachment_files.KEPT_FOR_MS
    while True:
        store.files.remove_unused()
        store.files.remove_strays()


if __name__ == "__main__":
    with ChatStore(Path(sys.argv[1])) as opened:
        if sys.argv[2] == "write":
            write(opened, random.Random(int(sys.argv[3])))
        else:
            sweep(opened)
