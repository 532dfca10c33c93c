from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

from quantizer.system import memory_limit
from quantizer.system.errors import EngineError
from quantizer.system.faults import reported_faults
from quantizer.system.memory_limit import (
    MemoryLimit,
    ProcessBytes,
    check_memory_limit,
    memory_limits,
    out_of_memory,
    save_address_space,
)

MIB = 1 << 20
ON_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="no other system enforces these limits")
ADDRESSES = MemoryLimit("ulimit -v", 500 * MIB, used_bytes=20 * MIB)
DATA = MemoryLimit("ulimit -d", 500 * MIB, used_bytes=20 * MIB)


@pytest.fixture
def limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that `ulimit -v 512000` was called."""
    monkeypatch.setattr(memory_limit, "memory_limits", lambda: (ADDRESSES,))


def under_limit(kind: str, n_mib: int, program: str) -> str:
    """What `program` prints under a limit."""
    start = f"import resource\nresource.setrlimit(resource.{kind}, ({n_mib} << 20, {n_mib} << 20))\n"
    setup = "from quantizer.system.memory_limit import *\n"
    command = [sys.executable, "-c", f"{start}{setup}{program}"]
    return subprocess.run(command, capture_output=True, check=True, text=True).stdout


@ON_LINUX
@pytest.mark.parametrize(("kind", "command"), [("RLIMIT_AS", "ulimit -v"), ("RLIMIT_DATA", "ulimit -d")])
def test_a_limit_is_read_with_what_the_process_has_taken_of_it(kind: str, command: str) -> None:
    program = (
        "(limit,) = memory_limits()\nprint(limit.command, limit.max_bytes, 0 < limit.used_bytes < limit.max_bytes)"
    )
    assert under_limit(kind, 300, program) == f"{command} {300 * MIB} True\n"


@ON_LINUX
def test_a_process_that_cannot_start_within_a_limit_is_refused_with_both_numbers() -> None:
    program = "try: check_memory_limit('engine process', ProcessBytes.ENGINE)\nexcept Exception as error: print(error)"
    refusal = "Not enough memory: the engine process needs 448 MiB and may use 300 MiB (ulimit -v)."
    assert under_limit("RLIMIT_AS", 300, program).startswith(refusal)
    assert under_limit("RLIMIT_AS", 600, program) == ""


@pytest.mark.skipif(bool(memory_limits()), reason="the tests run under a limit")
def test_without_a_limit_nothing_is_refused_and_no_words_tell_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MALLOC_ARENA_MAX", raising=False)
    check_memory_limit("engine process", ProcessBytes.ENGINE)
    save_address_space()
    assert out_of_memory("engine process", ["MemoryError"]) is None
    assert "MALLOC_ARENA_MAX" not in os.environ
    with pytest.raises(EngineError, match="not enough memory"), reported_faults("command"):
        raise MemoryError


def test_models_may_use_what_an_engine_process_leaves_of_a_limit() -> None:
    assert ADDRESSES.free_bytes(ProcessBytes.ENGINE) == 52 * MIB
    assert DATA.free_bytes(ProcessBytes.ENGINE) == 92 * MIB, "libraries are no data"
    assert MemoryLimit("ulimit -v", 500 * MIB, 490 * MIB).free_bytes(ProcessBytes.ENGINE) == 10 * MIB
    assert MemoryLimit("ulimit -v", 100 * MIB, 0).free_bytes(ProcessBytes.ENGINE) == 0


@pytest.mark.usefixtures("limited")
@pytest.mark.parametrize(
    "words",
    [
        "RuntimeError: can't start new thread",
        "OpenBLAS error: Memory allocation still failed after 10 retries, giving up.",
        "memory allocation of 176 bytes failed",
        "ggml_gallocr_reserve_n_impl: failed to allocate CPU buffer of size 173598848",
        "terminate called after throwing an instance of 'std::bad_alloc'",
        "ImportError: libggml.so: failed to map segment from shared object",
        "OSError: [Errno 12] Cannot allocate memory",
    ],
)
def test_the_last_words_of_a_process_without_memory_become_one_sentence(words: str) -> None:
    error = out_of_memory("service", ["Traceback", words, "an unrelated line"])
    assert error is not None
    assert error.cause == "Not enough memory: the service needs more and may use 500 MiB (ulimit -v)."


@pytest.mark.usefixtures("limited")
def test_other_last_words_are_not_about_memory() -> None:
    assert out_of_memory("service", ["GGML_ASSERT(a == b) failed"]) is None
    assert out_of_memory("service", []) is None


@pytest.mark.usefixtures("limited")
@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("can't start new thread")])
def test_what_python_raises_for_lack_of_memory_is_reported_as_that(error: Exception) -> None:
    sentence = r"^Not enough memory: the command needs more and may use 500 MiB"
    with pytest.raises(EngineError, match=sentence), reported_faults("command"):
        raise error
    with pytest.raises(RuntimeError, match="other"), reported_faults("command"):
        raise RuntimeError("other")


@pytest.mark.usefixtures("limited")
def test_processes_take_less_for_each_thread_under_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MALLOC_ARENA_MAX", raising=False)
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "3")
    save_address_space()
    assert os.environ["MALLOC_ARENA_MAX"] == "1"
    assert os.environ["OPENBLAS_NUM_THREADS"] == "3", "the user's own choice counts"
    monkeypatch.delenv("MALLOC_ARENA_MAX")


# Threads that are all alive allocate and free blocks of all sizes: each gets an arena, or all share one.
_GROW = """
import ctypes, sys, threading
from quantizer.system.memory_limit import use_one_arena
if sys.argv[1] == "one":
    use_one_arena(gives_back=True)
barrier = threading.Barrier(6)
def work():
    barrier.wait()
    libc.free(ctypes.c_void_p(libc.malloc(4000)))
    barrier.wait()
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
threads = [threading.Thread(target=work) for _ in range(6)]
for thread in threads: thread.start()
for thread in threads: thread.join()
sys.stdout.flush()
libc.malloc_info(0, ctypes.c_void_p.in_dll(libc, "stdout"))
libc.fflush(None)
"""


def _n_arenas(how: str) -> int:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    command = [sys.executable, "-c", _GROW, how]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return done.stdout.count("<heap nr=")


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="arenas are glibc's")
def test_threads_share_one_arena() -> None:
    assert _n_arenas("one") == 1
    assert _n_arenas("own") > 1


REFUSES_LIMITS = """
import resource, sys
from quantizer.system.memory_limit import limit_growth
def refuse(*_arguments):
    raise {error}
resource.setrlimit = refuse
limit_growth(64 << 20)
print("goes on", flush=True)
kept = []
import time
for _ in range({n_mib}):
    kept.append(bytearray(b"x" * (1 << 20)))
    time.sleep(0.002)
time.sleep(0.3)
print("ends well")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="it has no such limits to refuse")
@pytest.mark.parametrize("error", ["ValueError('exceeds maximum limit')", "OSError(22, 'Invalid argument')"])
@pytest.mark.parametrize(("n_mib", "said"), [(8, "goes on\nends well\n"), (400, "goes on\n")])
def test_where_the_system_refuses_a_limit_growth_is_watched_instead(error: str, n_mib: int, said: str) -> None:
    """As macOS does: each chat ended there with "used too much memory"."""
    program = REFUSES_LIMITS.format(error=error, n_mib=n_mib)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout == said, done.stderr
    assert done.returncode == (0 if "ends" in said else 1)
