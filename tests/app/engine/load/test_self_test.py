from __future__ import annotations

import sys
from pathlib import Path

import pytest

from app.engine.load.self_test import SelfTestResult, run_self_test
from quantizer.errors import EngineError


def child(code: str) -> tuple[str, ...]:
    return (sys.executable, "-c", code)


DIES = child("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
FINE = child("pass")


@pytest.mark.skipif(sys.platform == "win32", reason="signals end processes otherwise there")
def test_a_child_that_dies_turns_repacking_off_and_is_not_asked_again(tmp_path: Path) -> None:
    cache_file = tmp_path / "cache" / "selftest.json"
    assert run_self_test(cache_file, DIES) == SelfTestResult(is_safe=False, is_new=True)
    assert run_self_test(cache_file, FINE) == SelfTestResult(is_safe=False, is_new=False)


def test_a_child_that_lives_keeps_repacking_on(tmp_path: Path) -> None:
    assert run_self_test(tmp_path / "selftest.json", FINE) == SelfTestResult(is_safe=True, is_new=True)


def test_a_broken_cache_file_only_means_that_the_test_runs_again(tmp_path: Path) -> None:
    cache_file = tmp_path / "selftest.json"
    cache_file.write_text('["not", "verdicts"')
    assert run_self_test(cache_file, FINE).is_new


def test_a_test_that_cannot_be_made_is_an_error_and_no_verdict(tmp_path: Path) -> None:
    cache_file = tmp_path / "selftest.json"
    with pytest.raises(EngineError, match="no guide here"):
        run_self_test(cache_file, child("import sys; print('no guide here', file=sys.stderr); sys.exit(3)"))
    assert not cache_file.exists()


def test_the_real_child_comes_to_a_verdict(tmp_path: Path) -> None:
    assert run_self_test(tmp_path / "selftest.json").is_new
