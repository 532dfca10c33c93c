"""A process that writes chats endlessly and prints what was acknowledged: the victim of kills.

    python chat_writer.py DATA_DIR

Lines are JSON: {"kept": id, "content": text} after a message is acknowledged, {"said": text, "id": id, "at_s": clock}
after a piece of a running answer was handed over.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from dataclasses import replace
from pathlib import Path

from app.chat.conversation import MessageContent, MessageState
from app.chat.store.chat_store import AnswerRecorder, StoreThread

__all__ = ["talk"]


async def talk(data_dir: Path, chance: random.Random) -> None:
    """Ask and answer until killed."""
    async with StoreThread(data_dir) as thread:
        chat = await thread.do(lambda store: store.chats.create(title="talk"))
        leaf_id: int | None = None
        while True:
            leaf_id = await _ask(thread, chat.id, leaf_id)
            leaf_id = await _answer(thread, chat.id, leaf_id, chance)


async def _ask(thread: StoreThread, chat_id: int, parent_id: int | None) -> int:
    said = MessageContent(role="user", content=f"why, after {parent_id}?")
    question = await thread.do(lambda store: store.messages.add(chat_id, parent_id, said))
    _tell(kept=question.id, content=question.content)
    return question.id


async def _answer(thread: StoreThread, chat_id: int, question_id: int, chance: random.Random) -> int:
    words: list[str] = []
    async with AnswerRecorder(thread, chat_id, question_id) as answer:
        for number in range(chance.randrange(1, 300)):
            words.append(f"word{number} ")
            answer.update(replace(answer.message, content="".join(words)))
            _tell(said=words[-1], id=answer.message.id, at_s=time.monotonic())
            await asyncio.sleep(0.01)
        answer.update(replace(answer.message, state=MessageState.FINISHED))
    _tell(kept=answer.message.id, content="".join(words))
    return answer.message.id


def _tell(**fields: object) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(talk(Path(sys.argv[1]), random.Random(sys.argv[1])))
