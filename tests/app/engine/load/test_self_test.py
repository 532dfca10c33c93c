from __future__ import annotations

import sys
from pathlib import Path

import pytest

from app.engine.load.self_test import SelfTestResult, run_self_test
from quantizer.system.errors import EngineError
from quantizer.system.memory_limit import MemoryLimit


def child(code: str) -> tuple[str, ...]:
    return (sys.executable, "-c", code)


DIES = child("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
FINE = child("pass")


@pytest.mark.skipif(sys.platform == "win32", reason="signals end processes otherwise there")
def test_a_child_that_crashes_turns_repacking_off_and_does_not_run_again(tmp_path: Path) -> None:
    cache_dir = tmp_path / "cache"
    assert run_self_test(cache_dir, DIES) == SelfTestResult(is_safe=False, is_new=True)
    assert run_self_test(cache_dir, FINE) == SelfTestResult(is_safe=False, is_new=False)


def test_a_child_that_exits_well_keeps_repacking_on(tmp_path: Path) -> None:
    assert run_self_test(tmp_path, FINE) == SelfTestResult(is_safe=True, is_new=True)


def test_after_a_damaged_cache_file_the_test_runs_again(tmp_path: Path) -> None:
    cache_file = tmp_path / "selftest.json"
    cache_file.write_text('["not", "verdicts"')
    assert run_self_test(tmp_path, FINE).is_new


def test_a_test_that_cannot_run_is_an_error_and_stores_no_result(tmp_path: Path) -> None:
    cache_file = tmp_path / "selftest.json"
    with pytest.raises(EngineError, match="no guide here"):
        run_self_test(tmp_path, child("import sys; print('no guide here', file=sys.stderr); sys.exit(3)"))
    assert not cache_file.exists()


def test_the_real_child_gives_a_result(tmp_path: Path) -> None:
    assert run_self_test(tmp_path).is_new


@pytest.mark.skipif(sys.platform != "linux", reason="no other system enforces limits of memory")
def test_a_test_without_memory_says_nothing_about_the_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = MemoryLimit("ulimit -v", 500 << 20, 0)
    monkeypatch.setattr("quantizer.system.memory_limit.memory_limits", lambda: (limit,))
    with pytest.raises(EngineError, match=r"Not enough memory: the self-test of llama\.cpp needs more"):
        run_self_test(tmp_path, child("raise MemoryError"))
    assert not (tmp_path / "selftest.json").exists()


def test_a_test_that_the_system_cannot_start_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="cannot be started: No such file"):
        run_self_test(tmp_path, ("/nowhere/at/all",))
