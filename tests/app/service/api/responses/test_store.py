"""The store of responses: what stays, what leaves first, and who may read it."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import stat
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest

from app.common.database import Database
from app.service.api.responses.store import _SCHEMA, FILE_NAME, Kind, RemovedError, ResponseStore, StoreLimits
from app.service.http.guard import Caller
from app.settings.settings import Settings
from quantizer.system.errors import StorageError

DAY_S = 86_400
LARGE = StoreLimits(64 << 20, 30)


class Clock:
    """A clock that stands still until it is set."""

    def __init__(self) -> None:
        self.now_s = 1e9

    def __call__(self) -> float:
        return self.now_s


def asked(name: str, text: str) -> dict[str, Any]:
    content = [{"type": "input_text", "text": text}]
    return {"id": name, "type": "message", "role": "user", "content": content, "status": "completed"}


@asynccontextmanager
async def opened(
    folder: Path,
    limits: StoreLimits = LARGE,
    clock: Callable[[], float] | None = None,
    elapsed_s: Callable[[], float] | None = None,
) -> AsyncIterator[ResponseStore]:
    clock = clock or Clock()
    store = ResponseStore(folder, limits, clock, elapsed_s or clock)
    try:
        yield store
    finally:
        await store.close()


def texts_in(folder: Path) -> list[str]:
    with sqlite3.connect(folder / FILE_NAME) as connection:
        return [row[0] for row in connection.execute("SELECT item FROM contents WHERE item_id <> '' ORDER BY id")]


def modes_in(folder: Path) -> set[int]:
    return {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}


def _bytes_in(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.iterdir())


async def kept(store: ResponseStore, *names: str) -> list[str]:
    """Return which of the responses are stored, without using them."""
    with sqlite3.connect(store._path) as connection:
        found = {row[0] for row in connection.execute("SELECT name FROM records")}
    return [name for name in names if name in found]


async def test_a_response_comes_back_with_its_context_and_its_output(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        context, output = [asked("msg_1", "a\ud800\0é"), asked("msg_2", "b")], [asked("msg_3", "c")]
        assert await store.add(Kind.RESPONSE, {"id": "resp_1", "model": "tiny"}, context, output)
    async with opened(tmp_path) as store:
        record = await store.record(Kind.RESPONSE, "resp_1")
        assert record is not None
        assert (record.object, record.outputs) == ({"id": "resp_1", "model": "tiny"}, output)
        assert await store.items(Kind.RESPONSE, "resp_1") == [*context, *output]
        assert await store.items(Kind.RESPONSE, "resp_1", with_outputs=False) == context
        assert await store.referenced(["msg_3", "msg_9"]) == {"msg_3": output[0]}
        assert await store.record(Kind.CONVERSATION, "resp_1") is None


ALICE, BOB = Caller("alice", sees_all=False), Caller("bob", sees_all=False)


async def test_whoever_does_not_see_all_sees_what_it_stored_itself(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        alice, bob = store.seen_by(ALICE), store.seen_by(BOB)
        same = asked("msg_1", "the same of both")
        await alice.add(Kind.RESPONSE, {"id": "resp_a"}, [same, asked("msg_2", "Alice's")])
        await alice.add(Kind.CONVERSATION, {"id": "conv_a"}, [asked("msg_3", "Alice's")])
        assert await bob.referenced(["msg_1", "msg_2", "msg_3"]) == {}
        await bob.add(Kind.RESPONSE, {"id": "resp_b"}, [same, asked("msg_2", "Bob's")])
        for kind, name in ((Kind.RESPONSE, "resp_a"), (Kind.CONVERSATION, "conv_a")):
            assert await bob.record(kind, name) is None
            assert await bob.items(kind, name) is None
            assert not await bob.replace(kind, {"id": name, "metadata": {}})
            assert not await bob.remove(kind, name)
        assert not await bob.extend("conv_a", [same])
        assert not await bob.remove_item("conv_a", "msg_3")
        with pytest.raises(RemovedError):
            await bob.add(Kind.RESPONSE, {"id": "resp_a"}, [], is_again=True)
        own = [(await each.referenced(["msg_2"]))["msg_2"]["content"][0]["text"] for each in (alice, bob)]
        assert own == ["Alice's", "Bob's"]
        assert set(await bob.referenced(["msg_1", "msg_2", "msg_3"])) == {"msg_1", "msg_2"}
        assert await alice.items(Kind.CONVERSATION, "conv_a") == [asked("msg_3", "Alice's")]
        assert await store.items(Kind.RESPONSE, "resp_b") == [same, asked("msg_2", "Bob's")]


async def test_who_sees_all_refers_to_its_own_items_first_and_leaves_a_record_whose_it_is(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        owner, alice = store.seen_by(Caller("owner", sees_all=True)), store.seen_by(ALICE)
        await owner.add(Kind.RESPONSE, {"id": "resp_o"}, [asked("msg_1", "the owner's")])
        await alice.add(Kind.RESPONSE, {"id": "resp_a"}, [asked("msg_1", "forged"), asked("msg_2", "Alice's")])
        found = await owner.referenced(["msg_1", "msg_2"])
        assert [found[name]["content"][0]["text"] for name in ("msg_1", "msg_2")] == ["the owner's", "Alice's"]
        assert await owner.add(Kind.RESPONSE, {"id": "resp_a", "is_continued": True}, [])
        record = await alice.record(Kind.RESPONSE, "resp_a")
        assert record is not None
        assert record.object["is_continued"]


async def test_what_was_stored_before_there_were_owners_is_seen_by_who_sees_all(tmp_path: Path) -> None:
    former = replace(_SCHEMA, steps=_SCHEMA.steps[:1])
    database = Database(tmp_path / FILE_NAME, former)
    with database.writing() as connection:
        sql = "INSERT INTO records (name, kind, used_s, process, object) VALUES ('resp_1', 'response', 1e9, 0, ?)"
        connection.execute(sql, ('{"id": "resp_1"}',))
        connection.execute("INSERT INTO contents VALUES (1, '', x'00', '{\"id\": \"\"}')")
        connection.execute("INSERT INTO items VALUES (1, 0, -1, 1)")
    database.close()
    async with opened(tmp_path) as store:
        assert await store.seen_by(ALICE).record(Kind.RESPONSE, "resp_1") is None
        record = await store.seen_by(Caller("owner", sees_all=True)).record(Kind.RESPONSE, "resp_1")
        assert record is not None
        assert record.object["id"] == "resp_1"


async def test_who_fills_the_file_pushes_out_nobody_else(tmp_path: Path) -> None:
    text = "x" * 20_000
    async with opened(tmp_path, StoreLimits(1 << 20, 0)) as store:
        alice, owner = store.seen_by(ALICE), store.seen_by(Caller("owner", sees_all=True))
        for number in range(3):
            await owner.add(Kind.RESPONSE, {"id": f"resp_o{number}"}, [asked("msg_o", f"{text}{number}")])
        await owner.add(Kind.CONVERSATION, {"id": "conv_o"}, [asked("msg_o", "shared")])
        for number in range(100):
            await alice.add(Kind.RESPONSE, {"id": f"resp_{number}"}, [asked(f"msg_{number}", f"{number}{text}")])
        owners = ["conv_o", "resp_o0", "resp_o1", "resp_o2"]
        assert await kept(store, *owners) == owners
        assert await kept(store, "resp_0", "resp_99") == ["resp_99"]
        # A conversation counts as it grows; who has the most still makes room for it.
        for number in range(15):
            assert await owner.extend("conv_o", [asked(f"msg_c{number}", f"{text}{number}c")])
        assert await kept(store, "conv_o", "resp_99") == ["conv_o", "resp_99"]
    with sqlite3.connect(tmp_path / FILE_NAME) as connection:
        sums = """SELECT n_bytes, length(object) + coalesce((SELECT sum(length(item)) FROM items
            JOIN contents ON contents.id = content_id WHERE record_id = records.id), 0) FROM records"""
        counted = connection.execute(sums).fetchall()
    assert counted
    assert all(noted == stored for noted, stored in counted)


async def test_what_was_stored_before_sizes_were_noted_counts_as_well(tmp_path: Path) -> None:
    database = Database(tmp_path / FILE_NAME, replace(_SCHEMA, steps=_SCHEMA.steps[:2]))
    with database.writing() as connection:
        sql = "INSERT INTO records (name, kind, used_s, process, object) VALUES ('resp_1', 'response', 1e9, 0, '{}')"
        connection.execute(sql)
        connection.execute("INSERT INTO contents VALUES (1, '', x'00', '{\"id\": \"\"}')")
        connection.execute("INSERT INTO items VALUES (1, 0, -1, 1)")
    database.close()
    async with opened(tmp_path) as store:
        assert await store.record(Kind.RESPONSE, "resp_1") is not None
    with sqlite3.connect(tmp_path / FILE_NAME) as connection:
        assert connection.execute("SELECT n_bytes FROM records").fetchall() == [(len('{}{"id": ""}'),)]


async def test_what_is_stored_is_read_where_the_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That it was used now is noted, which writes."""

    def full(_database: Database) -> NoReturn:
        raise StorageError("The disk is full.", "Free some space and try again.")

    context, output = [asked("msg_1", "a")], [asked("msg_2", "b")]
    async with opened(tmp_path) as store:
        await store.add(Kind.RESPONSE, {"id": "resp_1"}, context, output)
        monkeypatch.setattr(Database, "writing", full)
        assert await store.items(Kind.RESPONSE, "resp_1") == [*context, *output]
        record = await store.record(Kind.RESPONSE, "resp_1")
        assert record is not None
        assert record.outputs == output


async def test_reading_makes_no_file(tmp_path: Path) -> None:
    async with opened(tmp_path / "data") as store:
        assert await store.record(Kind.RESPONSE, "resp_1") is None
        assert await store.items(Kind.RESPONSE, "resp_1") is None
        assert await store.referenced(["msg_1"]) == {}
        assert not await store.remove(Kind.RESPONSE, "resp_1")
    assert not (tmp_path / "data").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows keeps a user's folders to the user")
async def test_only_its_owner_can_read_the_file(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        async with opened(tmp_path) as store:
            await store.add(Kind.RESPONSE, {"id": "resp_1"}, [asked("msg_1", "secret")])
            assert modes_in(tmp_path) == {0o600}
    finally:
        os.umask(before)


async def test_equal_items_are_stored_once_and_leave_with_their_last_record(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        first, second = asked("msg_1", "first"), asked("msg_2", "second")
        await store.add(Kind.RESPONSE, {"id": "resp_1"}, [first])
        await store.add(Kind.RESPONSE, {"id": "resp_2"}, [first, second])
        assert len(texts_in(tmp_path)) == 2
        assert await store.remove(Kind.RESPONSE, "resp_1")
        assert await store.items(Kind.RESPONSE, "resp_2") == [first, second]  # it outlives the one before it
        assert await store.remove(Kind.RESPONSE, "resp_2")
        assert not await store.remove(Kind.RESPONSE, "resp_2")
        assert texts_in(tmp_path) == []


async def test_the_tools_of_an_agent_are_stored_once(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        made = [{"id": f"resp_{n}", "tools": [{"name": "f"}], "instructions": "x" * 10_000, "n": n} for n in range(50)]
        for value in made:
            await store.add(Kind.RESPONSE, value, [])
        record = await store.record(Kind.RESPONSE, "resp_7")
        assert record is not None
        assert record.object == made[7]
        assert await store.items(Kind.RESPONSE, "resp_7") == []
        assert await store.referenced([""]) == {}
    assert (tmp_path / FILE_NAME).stat().st_size < 200_000


async def test_nothing_of_a_deleted_response_is_left_in_the_file(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        await store.add(Kind.RESPONSE, {"id": "resp_1"}, [asked("msg_1", "a rare secret")])
        await store.add(Kind.CONVERSATION, {"id": "conv_1"}, [asked("msg_2", "a rare secret")])
        assert b"a rare secret" in _bytes_in(tmp_path)
        await store.remove(Kind.RESPONSE, "resp_1")
        await store.remove_item("conv_1", "msg_2")
        assert b"a rare secret" not in _bytes_in(tmp_path)


async def test_what_was_not_used_for_so_many_days_leaves(tmp_path: Path) -> None:
    clock = Clock()
    async with opened(tmp_path, StoreLimits(64 << 20, 30), clock) as store:
        await store.add(Kind.RESPONSE, {"id": "resp_1"}, [asked("msg_1", "a")])
        await store.add(Kind.RESPONSE, {"id": "resp_2"}, [asked("msg_2", "b")])
        clock.now_s += 20 * DAY_S
        assert await store.items(Kind.RESPONSE, "resp_2")  # which is a use
        clock.now_s += 20 * DAY_S
        await store.add(Kind.RESPONSE, {"id": "resp_3"}, [asked("msg_3", "c")])
        assert await kept(store, "resp_1", "resp_2", "resp_3") == ["resp_2", "resp_3"]


async def test_what_was_stored_while_the_clock_was_put_back_is_not_old_when_it_is_right_again(tmp_path: Path) -> None:
    clock = Clock()
    async with opened(tmp_path, LARGE, clock, elapsed_s=lambda: 5.0) as store:
        clock.now_s -= 400 * DAY_S
        await store.add(Kind.RESPONSE, {"id": "resp_1"}, [asked("msg_1", "a")])
        clock.now_s += 400 * DAY_S
        await store.prune()
        assert await kept(store, "resp_1") == ["resp_1"]


async def test_a_clock_that_is_put_forward_makes_nothing_old(tmp_path: Path) -> None:
    clock = Clock()
    async with opened(tmp_path, LARGE, clock, elapsed_s=lambda: 5.0) as store:
        await store.add(Kind.RESPONSE, {"id": "resp_1"}, [asked("msg_1", "a")])
        clock.now_s += 400 * DAY_S
        await store.add(Kind.RESPONSE, {"id": "resp_2"}, [asked("msg_2", "b")])
        await store.prune()
        assert await kept(store, "resp_1", "resp_2") == ["resp_1", "resp_2"]


@pytest.mark.parametrize("change", ["extend", "replace", "read"])
async def test_what_is_used_last_stays_though_the_clock_was_put_back(tmp_path: Path, change: str) -> None:
    clock = Clock()
    async with opened(tmp_path, StoreLimits(1 << 20, 0), clock, elapsed_s=lambda: 5.0) as store:
        for number in range(4):
            await store.add(
                Kind.CONVERSATION, {"id": f"conv_{number}"}, [asked(f"msg_{number}", f"{number}" * 200_000)]
            )
            clock.now_s += 1
        clock.now_s -= 400 * DAY_S
        match change:
            case "extend":
                await store.extend("conv_3", [asked("msg_9", "x")])
            case "replace":
                await store.replace(Kind.CONVERSATION, {"id": "conv_3"})
            case _:
                await store.items(Kind.CONVERSATION, "conv_3")
        for number in (5, 6):
            text = f"{number}" * 200_000
            assert await store.add(Kind.CONVERSATION, {"id": f"conv_{number}"}, [asked(f"msg_{number}", text)])
        names = [f"conv_{number}" for number in range(7)]
        assert (await kept(store, *names))[-3:] == ["conv_3", "conv_5", "conv_6"]
    async with opened(tmp_path, LARGE, Clock()) as store:
        await store.prune()
        assert (await kept(store, *names))[-3:] == ["conv_3", "conv_5", "conv_6"]


async def test_what_is_too_old_leaves_when_the_service_starts(tmp_path: Path) -> None:
    clock = Clock()
    async with opened(tmp_path, LARGE, clock) as store:
        await store.add(Kind.RESPONSE, {"id": "resp_1"}, [asked("msg_1", "a")])
        clock.now_s += 20 * DAY_S
        await store.add(Kind.RESPONSE, {"id": "resp_2"}, [asked("msg_2", "b")])
    clock.now_s += 20 * DAY_S
    async with opened(tmp_path, LARGE, clock) as store:
        await store.prune()
        assert await kept(store, "resp_1", "resp_2") == ["resp_2"]


async def test_all_leaves_where_nothing_is_to_be_stored_any_more(tmp_path: Path) -> None:
    async with opened(tmp_path / "none", StoreLimits(0, 30)) as store:
        await store.prune()
    async with opened(tmp_path) as store:
        for number in range(100):
            await store.add(Kind.RESPONSE, {"id": f"resp_{number}"}, [asked(f"msg_{number}", "secret" * 1000)])
    async with opened(tmp_path, StoreLimits(0, 30)) as store:
        await store.prune()
        assert await store.record(Kind.RESPONSE, "resp_99") is None
    assert texts_in(tmp_path) == []
    assert (tmp_path / FILE_NAME).stat().st_size < 100_000
    assert not (tmp_path / "none").exists()


async def test_the_least_recently_used_leaves_first_where_the_file_is_full(tmp_path: Path) -> None:
    clock = Clock()
    async with opened(tmp_path, StoreLimits(1 << 20, 0), clock) as store:
        for number in range(40):
            clock.now_s += 1
            assert await store.add(Kind.RESPONSE, {"id": f"resp_{number}"}, [asked(f"msg_{number}", "x" * 100_000)])
            await store.items(Kind.RESPONSE, "resp_0")
        names = await kept(store, *(f"resp_{number}" for number in range(40)))
        assert names[0] == "resp_0"
        assert names[1:] == [f"resp_{number}" for number in range(40 - len(names) + 1, 40)]
        assert 5 <= len(names) <= 10
    assert (tmp_path / FILE_NAME).stat().st_size < 3 << 20


async def test_one_that_is_larger_than_the_limit_is_not_stored(tmp_path: Path) -> None:
    async with opened(tmp_path, StoreLimits(200_000, 0)) as store:
        assert not await store.add(Kind.RESPONSE, {"id": "resp_1"}, [asked("msg_1", "x" * 300_000)])
        assert await store.add(Kind.RESPONSE, {"id": "resp_2"}, [asked("msg_2", "x")])


async def test_what_is_stored_again_and_became_too_large_was_not_removed_by_anybody(tmp_path: Path) -> None:
    async with opened(tmp_path, StoreLimits(200_000, 0)) as store:
        assert await store.add(Kind.RESPONSE, {"id": "resp_1"}, [asked("msg_1", "x")])
        longer = [asked("msg_1", "x" * 300_000)]
        assert not await store.add(Kind.RESPONSE, {"id": "resp_1"}, longer, is_again=True)
        with pytest.raises(RemovedError):
            await store.add(Kind.RESPONSE, {"id": "resp_1"}, longer, is_again=True)


async def test_a_conversation_grows_and_shrinks(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        one, two, three = (asked(f"msg_{number}", str(number)) for number in (1, 2, 3))
        await store.add(Kind.CONVERSATION, {"id": "conv_1", "metadata": {}}, [one])
        assert await store.extend("conv_1", [two, three])
        assert not await store.extend("conv_2", [two])
        assert await store.remove_item("conv_1", "msg_2")
        assert not await store.remove_item("conv_1", "msg_2")
        assert await store.items(Kind.CONVERSATION, "conv_1") == [one, three]
        assert await store.replace(Kind.CONVERSATION, {"id": "conv_1", "metadata": {"a": "b"}})
        record = await store.record(Kind.CONVERSATION, "conv_1")
        assert record is not None
        assert record.object["metadata"] == {"a": "b"}
        assert await store.items(Kind.CONVERSATION, "conv_1") == [one, three]


async def test_two_services_share_a_file(tmp_path: Path) -> None:
    async with opened(tmp_path) as first, opened(tmp_path) as second:
        adding = [
            store.add(Kind.RESPONSE, {"id": f"resp_{number}"}, [asked("msg_0", "same"), asked(f"msg_{number}", "own")])
            for number, store in enumerate([first, second] * 20)
        ]
        assert all(await asyncio.gather(*adding))
        for number in range(40):
            assert len(await first.items(Kind.RESPONSE, f"resp_{number}") or ()) == 2
    assert len(texts_in(tmp_path)) == 41


async def test_a_damaged_file_is_left_alone_and_said(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(b"no database" * 1000)
    async with opened(tmp_path) as store:
        with pytest.raises(StorageError, match="not a database"):
            await store.add(Kind.RESPONSE, {"id": "resp_1"}, [])
    assert (tmp_path / FILE_NAME).read_bytes() == b"no database" * 1000


@pytest.mark.parametrize(("size", "n_bytes"), [("0", 0), ("1MiB", 1 << 20), ("", 512 << 20)])
def test_the_settings_limit_the_store(size: str, n_bytes: int) -> None:
    assert StoreLimits.of(Settings(responses_size=size, responses_days=7)) == StoreLimits(n_bytes, 7)
