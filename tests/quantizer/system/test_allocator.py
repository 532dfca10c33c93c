from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

# Threads that are all alive allocate and free blocks of all sizes: each gets an arena, or all share one.
_GROW = """
import ctypes, sys, threading
from quantizer.system.allocator import use_one_arena
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
