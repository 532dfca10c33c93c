from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from app.engine.library_files import CPU_VARIANT
from app.engine.load.self_test import SelfTestResult, run_self_test, use_known_variant
from quantizer.system.errors import EngineError, WrongProcessorError
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


ILLEGAL = "import os, signal; os.kill(os.getpid(), signal.SIGILL)"
# A portable library, of which only some variants run on this processor.
VARIANTS = """
import json, os, signal, sys
variant = os.environ.get("LOCALLLM_CPU_VARIANT") or "best"
is_plain = "--plain" in sys.argv
print(json.dumps({"variants": ["best", "middle", "least"]}), flush=True)
if (variant, is_plain) in RUNS:
    print(json.dumps({"features": f"CPU ({variant})"}), flush=True)
else:  # while the backend is initialized
    os.kill(os.getpid(), signal.SIGILL if variant == "best" else signal.SIGSEGV)
"""


@pytest.fixture(autouse=True)
def _no_variant_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CPU_VARIANT, "")  # restored after a test in which the self-test sets it


@pytest.mark.skipif(sys.platform == "win32", reason="signals end processes otherwise there")
@pytest.mark.parametrize(
    ("runs", "is_safe", "variant"),
    [
        ({("best", False), ("middle", False)}, True, ""),
        ({("middle", False), ("least", False)}, True, "middle"),  # the best one has instructions that are missing
        ({("best", True), ("least", False)}, True, "least"),  # another with repacking precedes the best without
        ({("best", True), ("middle", True)}, False, ""),
        ({("least", True)}, False, "least"),
    ],
)
def test_where_the_best_variant_crashes_the_next_that_runs_is_used(
    tmp_path: Path, runs: set[tuple[str, bool]], is_safe: bool, variant: str
) -> None:
    portable = child(f"RUNS = {runs!r}{VARIANTS}")
    features = f"CPU ({variant or 'best'})"
    assert run_self_test(tmp_path, portable) == SelfTestResult(is_safe, True, variant, features)
    assert os.environ[CPU_VARIANT] == variant
    os.environ[CPU_VARIANT] = ""
    use_known_variant(tmp_path)  # as the processes do that list GPUs and plan
    assert os.environ[CPU_VARIANT] == variant
    os.environ[CPU_VARIANT] = ""
    assert run_self_test(tmp_path, DIES) == SelfTestResult(is_safe, False, variant, features)
    assert os.environ[CPU_VARIANT] == variant  # so that the engine and its children load it, too


@pytest.mark.skipif(sys.platform == "win32", reason="signals end processes otherwise there")
@pytest.mark.parametrize("code", [ILLEGAL, f"RUNS = set(){VARIANTS}"], ids=["one kind", "portable"])
def test_a_library_for_another_processor_is_called_so_and_its_rebuild_named(tmp_path: Path, code: str) -> None:
    with pytest.raises(WrongProcessorError, match=r"llama\.cpp was built for another processor.*SIGILL") as refused:
        run_self_test(tmp_path, child(code))
    assert "llama-cpp-python" in refused.value.remedy
    assert not (tmp_path / "selftest.json").exists()  # a rebuilt one is tested


@pytest.mark.skipif(sys.platform == "win32", reason="signals end processes otherwise there")
def test_a_build_that_only_repacks_with_missing_instructions_works_without(tmp_path: Path) -> None:
    code = f"import sys\nif '--plain' not in sys.argv: {ILLEGAL}"
    assert not run_self_test(tmp_path, child(code)).is_safe


def test_after_a_damaged_cache_file_the_test_runs_again(tmp_path: Path) -> None:
    cache_file = tmp_path / "selftest.json"
    cache_file.write_text('["not", "verdicts"')
    assert run_self_test(tmp_path, FINE).is_new


def test_a_test_that_cannot_run_is_an_error_and_stores_no_result(tmp_path: Path) -> None:
    cache_file = tmp_path / "selftest.json"
    with pytest.raises(EngineError, match="no guide here"):
        run_self_test(tmp_path, child("import sys; print('no guide here', file=sys.stderr); sys.exit(3)"))
    assert not cache_file.exists()


@pytest.mark.slow
def test_the_real_child_gives_a_result(tmp_path: Path) -> None:
    result = run_self_test(tmp_path)
    assert result.is_new
    assert "CPU" in result.features


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


def test_without_an_earlier_test_no_variant_is_chosen(tmp_path: Path) -> None:
    use_known_variant(tmp_path)
    assert not os.environ[CPU_VARIANT]
