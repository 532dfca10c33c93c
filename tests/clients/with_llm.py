"""The command `llm`: one question, with a model that its settings name."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from asking import ANSWER, GUIDE, MODEL, QUESTION

from app.launch.editors import editor_settings

folder = Path(os.environ["LLM_USER_PATH"])
folder.mkdir(exist_ok=True)
(folder / "extra-openai-models.yaml").write_text(editor_settings("llm", GUIDE, MODEL), encoding="utf-8")
for flags in ([], ["--no-stream"]):
    command = [sys.executable, "-m", "llm", "-m", "localllm", "-o", "temperature", "0", "--no-log", *flags, QUESTION]
    assert ANSWER in subprocess.run(command, check=True, capture_output=True, text=True).stdout
