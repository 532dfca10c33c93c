"""A data folder with something of every kind that users lose nothing of, and what is read from it as plain values.

Run: `uv run python tests/app/data_folder.py FOLDER` writes one; `tests/app/former_data/VERSION` has those that released
versions wrote, which every later version must read as they were.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

from app.chat.conversation import Attachment, ChatSettings, MessageContent, MessageState
from app.chat.presets import Presets, PromptLibrary
from app.chat.store.chat_store import ChatStore
from app.common.keys import KeyFile, KeyScope
from app.protocol.chat import ToolCall
from app.protocol.codec import encode
from app.protocol.job import Job
from app.service.api.responses.store import Kind, ResponseStore, StoreLimits
from app.service.jobs.run import JobStore
from app.settings.settings import load_settings
from app.tools.approval import ApprovalRule, ToolSettings
from app.tools.tool import FileChange, ToolOutcome, ToolResult

__all__ = ["read", "write"]

_LIMITS = StoreLimits(1 << 20, 0)


def write(folder: Path) -> None:
    """Write a folder of data as somebody leaves it who has used everything."""
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text('ctx = 4096\nsystem = "Be brief."\n', encoding="utf-8")
    (folder / "prompts").mkdir()
    (folder / "prompts" / "summary.md").write_text("Summarize {{text}} in a sentence.\n", encoding="utf-8")
    Presets(folder).save("terse", ChatSettings("Answer in a word.", {"temperature": 0.2}))
    KeyFile(folder / "keys.json").add("editor", [KeyScope.INFER])
    jobs = JobStore(folder / "jobs")
    jobs.save(
        Job(id="j1", kind="pull", title="org/repo", arguments={"model": "org/repo"}, created_s=1.7e9, state="done")
    )
    jobs.log("j1").append("fetched\n")
    jobs.close()
    with ChatStore(folder) as store:
        _write_chats(store)
    asyncio.run(_write_responses(folder))


def _write_chats(store: ChatStore) -> None:
    chat = store.chats.create(title="Rivers", model="guide", settings=ChatSettings("Be kind.", {"temperature": 0.7}))
    notes = Attachment("notes.txt", "The Danube is long.\n")
    question = store.messages.add(
        chat.id, None, MessageContent(role="user", content="Which river? 🏞", attachments=(notes,), created_ms=1)
    )
    for content, state in (("The Rhi", MessageState.PARTIAL), ("The Danube.", MessageState.FINISHED)):
        answer = MessageContent(
            role="assistant",
            content=content,
            reasoning="Long ones.",
            model="guide",
            stats={"tokens_per_s": 12.5},
            state=state,
            created_ms=2,
        )
        store.messages.add(chat.id, question.id, answer)
    store.chats.pin(chat.id, is_pinned=True)
    store.drafts.save(chat.id, MessageContent(content="And the next?", attachments=(Attachment("map.txt", "x"),)))
    _write_tools(store)
    archived = store.chats.create(title="Old")
    store.chats.archive(archived.id, is_archived=True)
    store.chats.delete(store.chats.create(title="Deleted, but not for long").id)


def _write_tools(store: ChatStore) -> None:
    tools = ToolSettings(("files",), ("/notes",), (ApprovalRule("tool", "files", "write_file"),), max_rounds=5)
    chat = store.chats.create(title="Tools", settings=ChatSettings(tools=tools))
    calls = (ToolCall("c1", "write_file", '{"path": "rivers.txt", "content": "Danube"}'),)
    asked = store.messages.add(chat.id, None, MessageContent(role="user", content="Note it.", created_ms=1))
    called = MessageContent(role="assistant", content="", calls=calls, created_ms=2)
    answer = store.messages.add(chat.id, asked.id, called)
    result = ToolResult(
        call_id="c1",
        tool="write_file",
        server="files",
        title="write rivers.txt",
        outcome=ToolOutcome.DONE,
        changes=(FileChange("/notes/rivers.txt", "", "0" * 64),),
    )
    wrote = MessageContent(role="tool", content="Written.", result=result, created_ms=3)
    store.messages.add(chat.id, answer.id, wrote)
    summary = MessageContent(role="summary", content="Rivers were noted.", n_kept=2, created_ms=4)
    store.messages.add(chat.id, answer.id, summary)


async def _write_responses(folder: Path) -> None:
    store = ResponseStore(folder, _LIMITS)
    item = {"type": "message", "role": "user", "id": "msg_1", "content": [{"type": "input_text", "text": "Hello"}]}
    await store.add(Kind.RESPONSE, {"id": "resp_1", "status": "completed"}, [item], [item | {"id": "msg_2"}])
    await store.close()


def read(folder: Path) -> dict[str, Any]:
    """Return what `folder` has, without what is other in each folder: the secrets of keys and the times of chats."""
    settings = load_settings({}, {"LOCALLLM_CONFIG": str(folder / "config.toml")})
    chats = []
    with ChatStore(folder) as store:
        for chat in (*store.chats.page(), *store.chats.page(archived=True)):
            draft = encode(store.drafts.get(chat.id))
            chats.append(
                {
                    "chat": {key: value for key, value in encode(chat).items() if not key.endswith("_ms")},
                    "messages": encode(store.messages.of(chat.id)),
                    "draft": {"attachments": draft["attachments"], "text": draft["content"]},
                }
            )
        found = [match.chat.title for match in store.search.find("danube")]
    jobs = JobStore(folder / "jobs")
    return {
        "settings": {"ctx": settings.ctx, "system": settings.system},
        "prompts": {name: PromptLibrary(folder).get(name) for name in PromptLibrary(folder).names()},
        "presets": encode(Presets(folder).all()),
        "keys": {key.name: sorted(key.scopes) for key in KeyFile(folder / "keys.json").known()},
        "jobs": [encode(job) | {"log": jobs.log(job.id).read()} for job in jobs.load()],
        "chats": chats,
        "found": found,
        "responses": asyncio.run(_read_responses(folder)),
    }


async def _read_responses(folder: Path) -> dict[str, Any]:
    store = ResponseStore(folder, _LIMITS)
    record = await store.record(Kind.RESPONSE, "resp_1")
    items = await store.items(Kind.RESPONSE, "resp_1")
    await store.close()
    return {"object": record.object if record else None, "items": items}


if __name__ == "__main__":
    write(Path(sys.argv[1]))
