from __future__ import annotations

import os
import subprocess
import sys
import types
from pathlib import Path

import pytest

from quantizer.files import open_locked, try_lock

HOLDS = """
import sys
from pathlib import Path
from quantizer.files import open_locked
held = open_locked(Path(sys.argv[1]))
print(held is not None, flush=True)
sys.stdin.read()
"""


def test_a_lock_is_held_by_one_process_and_goes_with_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    command = [sys.executable, "-c", HOLDS, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "True\n"
        assert open_locked(path) is None
        holder.kill()
        holder.wait()
        held = open_locked(path)
        assert held is not None
        held.close()


def test_windows_is_asked_for_a_byte_that_no_file_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulated: Windows locks bytes, here by a table of them."""
    locked: set[int] = set()

    def locking(descriptor: int, mode: int, n_bytes: int) -> None:
        offset = os.lseek(descriptor, 0, os.SEEK_CUR)
        if mode != 2 or n_bytes != 1 or offset in locked:
            raise PermissionError
        locked.add(offset)

    monkeypatch.setitem(sys.modules, "msvcrt", types.SimpleNamespace(locking=locking, LK_NBLCK=2))
    monkeypatch.setattr(sys, "platform", "win32")
    with (tmp_path / "lock").open("a+b", buffering=0) as first, (tmp_path / "lock").open("a+b", buffering=0) as second:
        assert try_lock(first)
        assert not try_lock(second)
        first.write(b"read by others")
        assert (tmp_path / "lock").read_bytes() == b"read by others"
    assert min(locked) >= 1 << 40
