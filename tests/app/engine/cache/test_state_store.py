from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from app.engine.cache import state_store
from app.engine.cache.state_store import SavedMatch, StateKey, StateStore, read_state, states_in, write_state
from app.engine.request import IN_MEMORY
from tests.app.engine.damaged_files import damaged_files
from tests.patience import PATIENCE_S


def saved(folder: Path, *sequences: tuple[list[int], bytes], **limits: int) -> StateStore:
    store = StateStore(folder, **limits)
    for tokens, state in sequences:
        store.save(tokens, state)
    return store


def load(store: StateStore, tokens: list[int]) -> bytes | None:
    match = store.match(tokens)
    return None if match is None else store.load(match)


def test_a_state_is_restored_after_a_restart(tmp_path: Path) -> None:
    saved(tmp_path, ([1, 2, 3], b"state")).close()
    store = StateStore(tmp_path)
    match = store.match([1, 2, 3, 4])
    assert match is not None
    assert (match.n_tokens, match.n_saved) == (3, 3)
    assert store.load(match) == b"state"
    store.close()


def test_the_longest_common_begin_wins_and_of_equals_the_shorter_sequence(tmp_path: Path) -> None:
    store = saved(tmp_path, ([1, 2, 9, 9], b"a"), ([1, 2, 3, 9, 9], b"b"), ([1, 2, 3, 8], b"c"))
    assert load(store, [1, 2, 3, 4]) == b"c"
    assert store.match([7]) is None
    store.close()


def test_a_state_is_never_matched_or_replaced_from_another_namespace(tmp_path: Path) -> None:
    store = saved(tmp_path, ([1, 2], b"plain"))
    store.save([1, 2, 3], b"steered", "adapter")
    store.close()
    again = StateStore(tmp_path)
    assert load(again, [1, 2, 3]) == b"plain"
    assert again.n_saved([1, 2, 3]) == 2
    assert again.n_saved([1, 2, 3], "adapter") == 3
    assert again.match([1, 2], "other") is None
    again.close()


def test_a_longer_sequence_replaces_its_prefix(tmp_path: Path) -> None:
    store = saved(tmp_path, ([1, 2], b"short"))
    store.save([1, 2, 3], b"long")
    store.close()
    assert len(list(tmp_path.iterdir())) == 1
    again = StateStore(tmp_path)
    assert load(again, [1, 2]) == b"long"
    assert again.n_saved([1, 2]) == 2
    again.close()


def test_the_least_recently_used_files_go_first(tmp_path: Path) -> None:
    for index in range(3):
        saved(tmp_path, ([index] * 4, bytes(1000))).close()
        for path in tmp_path.iterdir():
            os.utime(path, (path.stat().st_atime, path.stat().st_mtime - 10))
    first = StateStore(tmp_path)
    assert load(first, [0] * 4) is not None  # used now
    first.close()
    small = saved(tmp_path, ([7] * 4, bytes(1000)), max_disk_bytes=2500)
    small.close()
    last = StateStore(tmp_path)
    assert [last.match([index] * 4) is not None for index in (0, 1, 2, 7)] == [True, False, False, True]
    last.close()


def test_states_leave_memory_for_the_disk_and_are_read_again(tmp_path: Path) -> None:
    store = saved(tmp_path, ([1] * 4, b"x" * 600), ([2] * 4, b"y" * 600), max_memory_bytes=1000)
    store.close()
    assert load(store, [1] * 4) == b"x" * 600
    assert load(store, [2] * 4) == b"y" * 600


@pytest.mark.parametrize(("room_bytes", "n_left"), [(9000, 3), (3600, 3), (3599, 2), (2400, 2), (1200, 1), (0, 0)])
def test_states_take_no_more_memory_than_they_leave_free(tmp_path: Path, room_bytes: int, n_left: int) -> None:
    states = [([number] * 4, b"x" * 600) for number in range(3)]
    store = StateStore(tmp_path, 10_000, 0, limit_bytes=lambda n_held: (n_held + max(0, room_bytes - n_held)) // 2)
    for tokens, state in states:
        store.save(tokens, state)
    store.close()
    assert store.memory_bytes == 600 * n_left
    assert [store.match(tokens) is not None for tokens, _ in states] == [False] * (3 - n_left) + [True] * n_left


def test_an_idle_store_gives_memory_back_when_others_need_it_and_reads_from_disk_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_store, "_LOOK_S", 0.01)
    limit_bytes = 10_000
    given_back = threading.Event()
    monkeypatch.setattr(state_store, "give_back_freed_memory", given_back.set)
    store = StateStore(tmp_path, 10_000, limit_bytes=lambda _n_held: limit_bytes)
    with store.writing():
        for number in range(3):
            store.save([number] * 4, b"x" * 600)
        while len(list(tmp_path.iterdir())) < 3:
            assert not given_back.wait(0.01)
        assert store.memory_bytes == 1800
        limit_bytes = 700
        assert given_back.wait(PATIENCE_S)
    assert store.memory_bytes == 600
    assert [load(store, [number] * 4) for number in range(3)] == [b"x" * 600] * 3
    store.close()


def test_a_state_that_is_larger_than_the_limit_still_reaches_the_disk(tmp_path: Path) -> None:
    store = StateStore(tmp_path, 100, max_state_bytes=1000)
    assert store.max_state_bytes == 1000
    store.save([1] * 4, b"x" * 600)
    store.close()
    assert store.memory_bytes == 0
    assert load(store, [1] * 4) == b"x" * 600


class Written:
    """The names of files as they are written."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(state_store, "MAX_WRITE_DELAY_S", float("inf"))
        monkeypatch.setattr(state_store, "write_state", self._write)
        self.names: list[str] = []
        self.has_more = threading.Event()

    def _write(self, _folder: Path, name: str, *_: object) -> int:
        self.names.append(name)
        self.has_more.set()
        return 1


def test_states_are_written_while_the_engine_is_idle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = Written(monkeypatch)
    store = saved(tmp_path, ([1, 2, 3], b"state"))
    assert not written.names, "the engine may compute"
    with store.writing():
        assert written.has_more.wait(PATIENCE_S)
    store.close()
    assert len(written.names) == 1


def test_a_full_memory_is_written_while_the_engine_computes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = Written(monkeypatch)
    store = saved(tmp_path, ([1] * 4, b"x" * 600), ([2] * 4, b"y" * 600), max_memory_bytes=1000)
    assert written.has_more.wait(PATIENCE_S)
    store.close()


def test_a_damaged_file_is_a_miss(tmp_path: Path) -> None:
    saved(tmp_path, ([1, 2, 3], b"state" * 100)).close()
    (path,) = tmp_path.iterdir()
    data = bytearray(path.read_bytes())
    data[-7] ^= 1
    path.write_bytes(data)
    store = StateStore(tmp_path)
    assert load(store, [1, 2, 3]) is None
    store.close()


def test_a_file_that_another_process_removed_is_a_miss(tmp_path: Path) -> None:
    saved(tmp_path, ([1, 2, 3], b"state")).close()
    store = StateStore(tmp_path)
    for path in tmp_path.iterdir():
        path.unlink()
    assert load(store, [1, 2, 3]) is None
    assert store.match([1, 2, 3]) is None
    store.close()


def test_a_full_disk_costs_the_file_and_nothing_else(tmp_path: Path) -> None:
    folder = tmp_path / "taken"
    folder.write_text("a file where the folder should be")
    store = saved(folder, ([1, 2, 3], b"state"))
    assert load(store, [1, 2, 3]) == b"state"
    store.close()
    assert store.load(SavedMatch("missing", 1, 1)) is None


def test_checkpoints_of_one_sequence_keep_the_first_and_the_last_and_lose_the_densest(tmp_path: Path) -> None:
    store = StateStore(tmp_path)
    tokens = list(range(1000))
    for n_tokens in (100, 200, 210, 300, 400, 500, 600, 700, 800):
        store.save_checkpoint(tokens[:n_tokens], b"states")
    assert [match.n_tokens for match in store.checkpoints(tokens)] == [800, 700, 600, 500, 400, 300, 200, 100]
    store.save_checkpoint(tokens[:900], bytes(200 << 20))
    assert [match.n_tokens for match in store.checkpoints(tokens)] == [900, 100]
    store.close()


def test_the_checkpoint_at_the_end_of_a_document_stays_however_long_the_chat_about_it_becomes(tmp_path: Path) -> None:
    store = StateStore(tmp_path)
    tokens = list(range(9000))
    for n_tokens in (20, 120, 160, *range(1000, 9000, 500)):
        store.save_checkpoint(tokens[:n_tokens], b"states", branches=(120,))
    left = [match.n_tokens for match in store.checkpoints(tokens)]
    assert len(left) == 8
    assert left[-2:] == [120, 20]
    store.close()


def test_of_two_chats_about_a_document_one_makes_room_and_the_document_stays(tmp_path: Path) -> None:
    document, other = list(range(400)), [7] * 300
    chats = ([*document, 1], [*document, 2], other)
    store = saved(tmp_path, *[(tokens, bytes(4 * len(tokens))) for tokens in chats])
    store.close()
    small = StateStore(tmp_path, max_disk_bytes=6500)  # room for one of these and the other
    small.save([9], b"")  # what is written makes room
    small.close()
    again = StateStore(tmp_path)
    assert again.n_saved([*document, 3]) == len(document)
    assert again.n_saved(other) == len(other)
    again.close()


def test_checkpoints_are_written_with_a_state_that_has_their_tokens_and_outlive_longer_states(tmp_path: Path) -> None:
    store = StateStore(tmp_path)
    store.save_checkpoint([1, 2], b"early")
    store.save_checkpoint([7, 8], b"other")
    store.save([1, 2, 3], b"state")
    store.save([1, 2, 3, 4], b"longer")
    store.close()
    again = StateStore(tmp_path)
    (match,) = again.checkpoints([1, 2, 3])
    assert again.load(match) == b"early"
    assert again.checkpoints([7, 8, 9]) == []
    assert load(again, [1, 2, 3]) == b"longer"
    assert again.match([1, 2, 3], is_whole=True) is None
    again.close()


def test_the_states_of_a_forgotten_conversation_go_with_their_files(tmp_path: Path) -> None:
    store = StateStore(tmp_path)
    store.save([1, 2], b"hers", conversation="ann")
    store.save_checkpoint([1, 3], b"hers too", conversation="ann")
    store.save([1, 3, 4], b"his", conversation="bob")
    store.close()
    assert sorted(path.name.partition("-")[2] for path in tmp_path.iterdir()) == ["ann", "ann", "bob"]
    again = StateStore(tmp_path)
    again.forget(("ann",))
    assert (again.n_saved([1, 2]), again.n_saved([1, 3, 4]), again.checkpoints([1, 3])) == (1, 3, [])
    again.close()
    assert [path.name.partition("-")[2] for path in tmp_path.iterdir()] == ["bob"]


def test_a_state_that_is_only_for_memory_is_never_written(tmp_path: Path) -> None:
    store = StateStore(tmp_path)
    store.save([1, 2], b"unsaved chat", conversation=IN_MEMORY)
    store.save_checkpoint([1], b"of it", conversation=IN_MEMORY)
    assert load(store, [1, 2]) == b"unsaved chat"
    store.close()
    assert list(tmp_path.iterdir()) == []


def test_what_is_only_for_memory_is_written_once_a_chat_that_may_be_has_all_of_its_tokens(tmp_path: Path) -> None:
    store = StateStore(tmp_path)
    store.save([1, 2, 3], b"read", conversation=IN_MEMORY)
    store.save_checkpoint([1, 2], b"early", conversation=IN_MEMORY)
    store.save([1, 2, 7], b"private", conversation=IN_MEMORY)
    store.adopt([1, 2, 3, 4], "", "chat")
    store.save([1, 2, 3, 4, 5], b"state", conversation="chat")
    store.close()
    again = StateStore(tmp_path)
    assert [again.load(match) for match in again.checkpoints([1, 2, 9])] == [b"early"]
    assert load(again, [1, 2, 3, 4, 5]) == b"state"
    assert again.n_saved([1, 2, 7]) == 2
    again.close()


def test_a_state_that_is_only_for_memory_takes_the_place_of_none_on_disk(tmp_path: Path) -> None:
    store = StateStore(tmp_path)
    store.save([1, 2, 3], b"state", conversation="chat")
    store.save([1, 2, 3, 4], b"private", conversation=IN_MEMORY)
    assert store.n_saved([1, 2, 3, 4]) == 4
    assert store.n_saved([1, 2, 3, 4], is_for_disk=True) == 3
    store.close()
    again = StateStore(tmp_path)
    assert load(again, [1, 2, 3]) == b"state"
    again.close()


def test_without_room_on_the_disk_states_stay_in_memory_and_former_files_go(tmp_path: Path) -> None:
    saved(tmp_path, ([1, 2], b"before")).close()
    store = saved(tmp_path, ([3, 4], b"after"), max_disk_bytes=0)
    assert load(store, [3, 4]) == b"after"
    assert store.match([1, 2]) is None
    store.close()
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_does_not_say_whose_it_is_goes(tmp_path: Path) -> None:
    saved(tmp_path, ([1, 2], b"before")).close()
    (path,) = tmp_path.iterdir()
    path.rename(tmp_path / path.name.partition("-")[0])  # as former versions called it
    StateStore(tmp_path).close()
    assert list(tmp_path.iterdir()) == []


LABEL = StateKey("namespace", np.arange(3, dtype=np.int32))
STATE = b"state" * 100


def written(folder: Path) -> Path:
    assert write_state(folder, "name", LABEL, STATE, max_bytes=10_000) == (folder / "name").stat().st_size
    return folder / "name"


def test_a_state_and_its_key_are_read_again(tmp_path: Path) -> None:
    path = written(tmp_path)
    ((name, key, n_bytes),) = states_in(tmp_path)
    assert (name, key.namespace, key.tokens.tolist(), n_bytes) == ("name", "namespace", [0, 1, 2], path.stat().st_size)
    assert read_state(path, key) == STATE


def test_a_state_is_not_read_for_other_tokens_or_another_namespace(tmp_path: Path) -> None:
    path = written(tmp_path)
    assert read_state(path, StateKey("namespace", LABEL.tokens + 1)) is None
    assert read_state(path, StateKey("other", LABEL.tokens)) is None


@pytest.mark.parametrize("damage", ["truncate", "flip", "garbage", "header"])
def test_a_damaged_file_is_a_miss_and_never_a_wrong_state(tmp_path: Path, damage: str) -> None:
    path = written(tmp_path)
    data = bytearray(path.read_bytes())
    if damage == "truncate":
        del data[-1]
    elif damage == "flip":
        data[-7] ^= 1
    elif damage == "header":
        data[data.index(b"{")] = ord("?")
    else:
        data[:40] = b"\xff" * 40
    path.write_bytes(data)
    assert read_state(path, LABEL) is None
    assert damage == "flip" or not list(states_in(tmp_path))  # only reading all of it tells a flipped bit


def test_a_part_that_a_dead_process_left_is_swept_and_a_live_ones_is_not(tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", "pass"])
    dead.wait()
    (tmp_path / f".aa.{dead.pid}.0.tmp").write_bytes(b"half")
    (tmp_path / f".bb.{os.getpid()}.0.tmp").write_bytes(b"half")
    assert list(states_in(tmp_path)) == []
    assert [path.name for path in tmp_path.iterdir()] == [f".bb.{os.getpid()}.0.tmp"]


def test_what_the_disk_refuses_or_is_too_large_leaves_no_file(tmp_path: Path) -> None:
    folder = tmp_path / "taken"
    folder.write_text("a file where the folder should be")
    assert write_state(folder, "name", LABEL, STATE, max_bytes=10_000) == 0
    assert write_state(tmp_path / "new", "name", LABEL, STATE, max_bytes=100) == 0
    assert not (tmp_path / "new").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such modes")
def test_only_its_owner_can_read_a_state_and_list_the_folder(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        path = written(tmp_path / "prefix" / "weights")
    finally:
        os.umask(before)
    modes = [file.stat().st_mode & 0o777 for file in (path, path.parent, path.parent.parent)]
    assert modes == [0o600, 0o700, 0o700]


def test_states_of_a_disk_that_became_read_only_are_used_and_those_in_memory_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(tmp_path, ([1, 2, 3], b"state")).close()

    def refuse(*_arguments: object, **_options: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    opened = os.open

    def open_to_read(path: str, flags: int, mode: int = 0o777, **options: int) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            refuse()
        return opened(path, flags, mode, **options)

    for name, method in (("unlink", refuse), ("mkdir", refuse), ("open", open_to_read)):
        monkeypatch.setattr(os, name, method)
    store = StateStore(tmp_path, max_disk_bytes=1000)
    assert load(store, [1, 2, 3, 4]) == b"state"
    store.save([1, 2, 3, 4, 5], b"longer")
    store.save([7, 8], b"other")
    store.forget(["none"])
    store.close()


def test_a_folder_that_cannot_be_made_stores_states_in_memory(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file", encoding="utf-8")
    store = saved(tmp_path / "cache" / "prefix", ([1, 2, 3], b"state"))
    assert load(store, [1, 2, 3, 4]) == b"state"
    store.close()


@pytest.mark.slow
def test_a_file_with_any_damage_is_a_miss_and_never_raises(tmp_path: Path) -> None:
    tokens = [1, 2, 3]
    saved(tmp_path / "made", (tokens, b"state")).close()
    (made,) = (tmp_path / "made").iterdir()
    whole = made.read_bytes()
    (folder := tmp_path / "prefix").mkdir()
    (place := folder / made.name).write_bytes(whole)
    ((_, key, _),) = states_in(folder)
    n_tried = 0
    for data in damaged_files(whole, 20, seed=49):
        place.write_bytes(data)
        assert read_state(place, key) in (None, b"state")
        place.write_bytes(data)
        for name, found, _ in states_in(folder):
            read_state(folder / name, found)
        n_tried += 1
    assert n_tried > 3000


@pytest.mark.parametrize(
    ("former", "damaged"), [(b'"ns"', b'"nt"'), (b'"ns"', b'"\\ud800"'), (b'"n_tokens": 3', b'"n_tokens": 2')]
)
def test_the_store_has_no_state_under_a_damaged_key(tmp_path: Path, former: bytes, damaged: bytes) -> None:
    store = StateStore(tmp_path)
    store.save([1, 2, 3], b"state", "ns")
    store.close()
    (path,) = tmp_path.iterdir()
    head = path.read_bytes()[20:].partition(b"}")[0] + b"}"
    rest = path.read_bytes()[20 + len(head) :]
    assert former in head
    head = head.replace(former, damaged)
    path.write_bytes(path.read_bytes()[:16] + len(head).to_bytes(4, "little") + head + rest)
    store = StateStore(tmp_path)
    assert [store.match([1, 2, 3], name) for name in ("ns", "nt", "\ud800")] == [None] * 3
    assert not path.exists()
    store.close()


@pytest.mark.parametrize("number", ["1e30", "-1", "true", "null", "99999999999999999999", "4611686018427387904", '"3"'])
@pytest.mark.parametrize("name", ["n_tokens", "state_bytes"])
def test_a_damaged_number_in_a_head_asks_for_no_memory(tmp_path: Path, name: str, number: str) -> None:
    key = StateKey("ns", np.array([1, 2, 3], np.int32))
    write_state(tmp_path, "a", key, memoryview(b"state"), 1 << 20)
    whole = (tmp_path / "a").read_bytes()
    text = re.sub(rf'"{name}": \d+'.encode(), f'"{name}": {number}'.encode(), whole[20 : whole.index(b"}") + 1])
    (tmp_path / "a").write_bytes(whole[:16] + len(text).to_bytes(4, "little") + text + whole[whole.index(b"}") + 1 :])

    assert list(states_in(tmp_path)) == []
    assert not (tmp_path / "a").exists()
