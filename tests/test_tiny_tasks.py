"""The tiny tasks of `tests/bench/tools` can be solved, and only by solving them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.tools.tasks import TASKS, Task
from tests.bench.tools.tiny_tasks import run_calls


def test_there_are_thirty_each_with_a_question_of_its_own() -> None:
    assert len({task.question for task in TASKS}) == 30


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.question[:40])
async def test_a_task_is_solved_by_its_calls_and_not_by_its_question(task: Task, tmp_path: Path) -> None:
    folder = tmp_path / "task"
    folder.mkdir()
    task.write(folder)
    assert not task.is_solved(folder, task.question)
    assert not task.is_solved(folder, "")
    assert task.is_solved(folder, await run_calls(task, folder, tmp_path / "data"))
