"""A few simulated worlds, and faults that are planted in the product: the simulation has to find them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

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
            "from app.service.api.responses import exchange\n"
            "store = exchange._store\n"
            "async def store_or_not(*values, **options):\n"
            "    try: return await store(*values, **options)\n"
            "    except exchange.StorageError: return ''\n"
            "exchange._store = store_or_not",
            "is lost",
            1,
        ),
        (
            "from app.service.api.responses import exchange\n"
            "async def keep(store, context, response, *, extends=True, is_again=False):\n"
            "    await exchange._store(store, context, response, extends=extends, is_again=is_again)\n"
            "    return response\n"
            "exchange.keep = keep",
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
    ],
)
def test_a_fault_that_is_planted_is_found(planted: str, found: str, seed: int) -> None:
    """From `seed` on it takes few worlds, as long as they stay as they are."""
    ran = _run("--worlds", "300", "--seed", str(seed), "--stop", planted=planted)
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert re.search(found, ran.stdout), ran.stdout
