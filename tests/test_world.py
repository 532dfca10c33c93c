"""A few simulated worlds, and faults that are planted in the product: the simulation has to find them."""

from __future__ import annotations

import random
import re
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tests.battery.world.power import Power

_ROOT = Path(__file__).parents[1]


def _run(*arguments: str, planted: str = "") -> subprocess.CompletedProcess[str]:
    """Run worlds in a process of its own, which lives by another clock, with `planted` as statements before them."""
    code = (
        "import sys; from tests.battery.world import clock\n"
        f"{planted}\n"
        "from tests.battery.world.simulate import main\n"
        f"sys.argv[1:] = {list(arguments)!r}; main()"
    )
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=_ROOT,
        env={"PYTHONHASHSEED": "0", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="the loop is that of Unix")
def test_worlds_keep_every_promise_and_a_seed_is_the_same_world_each_time() -> None:
    ran = [_run("--worlds", "3", "--seed", "1", "--trace") for _ in range(2)]
    for each in ran:
        assert each.returncode == 0, each.stdout + each.stderr
    digests = [re.findall(r"^seed \d+: [0-9a-f]{16} at .*$", each.stdout, re.MULTILINE) for each in ran]
    assert len(digests[0]) == 3
    assert digests[0] == digests[1]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="the loop is that of Unix")
def test_worlds_whose_power_fails_keep_what_was_acknowledged() -> None:
    ran = [_run("--worlds", "3", "--seed", "1", "--power", "--trace") for _ in range(2)]
    for each in ran:
        assert each.returncode == 0, each.stdout + each.stderr
        assert re.search(r"power failed: [1-9]", each.stdout)
    digests = [re.findall(r"^seed \d+: [0-9a-f]{16} at .*$", each.stdout, re.MULTILINE) for each in ran]
    assert digests[0] == digests[1]


def _synced(power: Power, path: Path) -> None:
    power.synced(path, path.lstat().st_ino)


def _written(power: Power, path: Path, text: str) -> None:
    is_new = not path.exists()
    path.write_text(text)
    if is_new:
        power.created(path)


def _after_failures(root: Path, begin: Callable[[Power], object]) -> Counter[str]:
    """Return how often each content of the file `a`, "none" for none, is left by 200 failures of the power."""
    left = Counter[str]()
    for seed in range(200):
        for path in root.iterdir():
            path.unlink()
        power = Power(root, random.Random(seed))
        begin(power)
        power.lose()
        left[(root / "a").read_text() if (root / "a").exists() else "none"] += 1
    return left


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="it has no numbers of files")
def test_a_failure_of_the_power_leaves_what_was_synced_and_some_of_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "a"

    def write(power: Power, *synced: Path) -> None:
        _written(power, path, "first")
        for each in synced:
            _synced(power, each)

    assert set(_after_failures(tmp_path, lambda power: write(power, path, tmp_path))) == {"first"}
    names_only = _after_failures(tmp_path, lambda power: write(power, tmp_path))
    assert {"first", "", "fir", "\0\0"} <= names_only.keys()
    assert "none" not in names_only
    data_only = _after_failures(tmp_path, lambda power: write(power, path))
    assert data_only.keys() == {"first", "none"}

    def replace(power: Power) -> None:
        write(power, path, tmp_path)
        _written(power, tmp_path / "b", "second")
        _synced(power, tmp_path / "b")
        (tmp_path / "b").replace(path)

    replaced = _after_failures(tmp_path, replace)
    assert replaced.keys() == {"first", "second"}, "one of them, whole"
    assert not (tmp_path / "b").exists(), "its name was never synced"

    def append(power: Power) -> None:
        write(power, path, tmp_path)
        _written(power, path, "first and more")

    appended = _after_failures(tmp_path, append)
    assert {"first", "first and more"} <= appended.keys()
    assert all(text.startswith("first") for text in appended)


@pytest.mark.skipif(sys.platform == "win32", reason="it has no numbers of files")
def test_a_folder_that_was_not_synced_takes_what_was_synced_in_it(tmp_path: Path) -> None:
    root, left = tmp_path / "root", Counter[bool]()
    folder = root / "new"
    for seed in range(50):
        root.mkdir(exist_ok=True)
        power = Power(root, random.Random(seed))
        folder.mkdir()
        power.created(folder)
        _written(power, folder / "a", "kept")
        _synced(power, folder / "a")
        _synced(power, folder)
        power.lose()
        left[folder.exists()] += 1
        assert not folder.exists() or (folder / "a").read_text() == "kept"
        if folder.exists():
            (folder / "a").unlink()
            folder.rmdir()
    assert min(left[False], left[True]) > 5


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="it has no numbers of files")
def test_a_database_loses_the_last_of_its_commits_or_none_and_is_sound(tmp_path: Path) -> None:
    left = Counter[int]()
    for seed in range(60):
        path = tmp_path / f"{seed}.db"
        power = Power(tmp_path, random.Random(seed))
        power.forgetful.add(path)
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute("CREATE TABLE numbers (number INTEGER, text TEXT)")
            for number in range(40):
                connection.execute("INSERT INTO numbers VALUES (?, ?)", (number, "x" * 3000))
                if number == 9:
                    connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
            killed = {each: each.read_bytes() for each in tmp_path.glob(f"{seed}.db*")}
        for each, data in killed.items():
            each.write_bytes(data)
        power.lose()
        with closing(sqlite3.connect(path)) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            numbers = [number for (number,) in connection.execute("SELECT number FROM numbers ORDER BY number")]
        assert numbers == list(range(len(numbers)))
        assert len(numbers) >= 10, "what was copied into the database stays"
        left[len(numbers)] += 1
        for each in tmp_path.iterdir():
            each.unlink()
    assert len(left) > 5


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="the loop is that of Unix")
@pytest.mark.parametrize(
    ("planted", "found", "seed"),
    [
        (
            "from app.service.pool.worker_process import PendingRequests\n"
            "PendingRequests.fail_all = lambda self, error: None",
            "no end after 600 s",
            45,
        ),
        (
            "from app.service.pool.memory import LoadQueue\n"
            "async def admit(self, engine): pass\n"
            "LoadQueue.admit = admit",
            "bytes at once",
            1,
        ),
        (
            "from app.engine.worker import Outbox\n"
            "flush = Outbox.flush\n"
            "def flush_twice(self): events = dict(self._outputs); flush(self); self._outputs = events\n"
            "Outbox.flush = flush_twice",
            "as the whole of|instead of|is no beginning of",
            1,
        ),
        (
            "from app.engine.loop.core import Engine\nEngine.abort = lambda self, request_id: None",
            "computes for nobody",
            85,
        ),
        (
            "from contextlib import contextmanager\n"
            "from app.common import database\n"
            "@contextmanager\n"
            "def commit_later(connection):\n"
            "    if connection.in_transaction: connection.execute('COMMIT')\n"
            "    connection.execute('BEGIN IMMEDIATE')\n"
            "    yield\n"
            "database._transaction = commit_later",
            "is lost",
            1,
        ),
        (
            "from app.service.jobs.run import JobStore\nJobStore.save = lambda self, job: None",
            "an acknowledged job is lost|is listed 0 times",
            1,
        ),
        (
            "from app.batch.run import OutputFile\n"
            "begin = OutputFile.__init__\n"
            "def begin_anew(self, *words, **options): begin(self, *words, **options); self.done = set()\n"
            "OutputFile.__init__ = begin_anew",
            "a batch answers twice",
            95,
        ),
        (
            "from app.service.api.responses.exchange import Exchange\n"
            "from quantizer.system.errors import StorageError\n"
            "add = Exchange._add\n"
            "async def add_or_not(*values, **options):\n"
            "    try: return await add(*values, **options)\n"
            "    except StorageError: return ''\n"
            "Exchange._add = add_or_not",
            "is lost",
            1,
        ),
        (
            "from app.service.api.responses.exchange import Exchange\n"
            "async def keep(self, response, *, extends=True, is_again=False):\n"
            "    await self._add(response, extends=extends, is_again=is_again)\n"
            "    return response\n"
            "Exchange._keep = keep",
            "an error without its cause: .*disk",
            1,
        ),
        (
            "from concurrent.futures import ThreadPoolExecutor\n"
            "from app.chat.store import chat_store\n"
            "chat_store.ThreadPoolExecutor = lambda n_workers, name: ThreadPoolExecutor(4, name)",
            "in that same thread",
            1,
        ),
        (
            "from quantizer.system import files\n"
            "def make(path, mode=0o777): path.mkdir(mode=mode, parents=True, exist_ok=True); return path\n"
            "files.make_folder = make",
            "is lost|is listed 0 times",
            1,
        ),
        (
            "from app.service.jobs import run\n"
            "write = run.write_atomically\n"
            "run.write_atomically = lambda *words, sync, **options: write(*words, sync=False, **options)",
            "an acknowledged job is lost|is listed 0 times|a job that was",
            1,
        ),
    ],
    ids=[
        "requests of an engine that dies",
        "memory",
        "a text that is sent twice",
        "an abort that is lost",
        "a change of a database that is acknowledged before it is there",
        "a job that is not saved",
        "a batch that begins anew after a kill",
        "a full disk that is not reported",
        "an answer that a full disk prevents",
        "a database in two threads",
        "a folder that a failure of the power takes",
        "a job that is not synced",
    ],
)
def test_a_fault_that_is_planted_is_found(planted: str, found: str, seed: int) -> None:
    """From `seed` on it takes few worlds, as long as they stay as they are."""
    ran = _run("--worlds", "300", "--seed", str(seed), "--stop", planted=planted)
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert re.search(found, ran.stdout), ran.stdout
