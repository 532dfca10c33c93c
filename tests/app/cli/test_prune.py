from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from small_models import small_model

Run = Callable[..., Any]


def _partial(models: Path) -> Path:
    path = models / "me" / "x" / ".new.gguf.0.partial"
    path.parent.mkdir(parents=True)
    path.write_bytes(bytes(2000))
    return path


def test_what_would_go_is_told_and_stays_on_a_dry_run(localllm: Run, models: Path) -> None:
    path = _partial(models)
    assert localllm("prune", "--dry-run").out == "   1 × interrupted writing        2 kB\n"
    told = localllm("prune", "--dry-run", "--json").json
    assert list(told) == ["found", "bytes_freed", "rows_forgotten", "dry_run"]
    assert (told["found"][0]["bytes"], told["bytes_freed"]) == (2000, 0)
    assert path.exists()


def test_what_goes_is_counted(localllm: Run, models: Path) -> None:
    path = _partial(models)
    assert localllm("prune", "--yes").out.endswith("Freed 2 kB.\n")
    assert not path.exists()
    assert localllm("prune").out == "There is nothing to remove.\n"


def test_rows_of_files_that_are_gone_leave_the_index(localllm: Run, models: Path) -> None:
    path = small_model(models / "me" / "x" / "m.gguf")
    localllm("ls")
    path.unlink()
    assert localllm("prune", "--json").json["rows_forgotten"] == 1


def test_without_anybody_to_ask_nothing_goes(localllm: Run, models: Path) -> None:
    path = _partial(models)
    assert localllm("prune").status == 2
    assert path.exists()
