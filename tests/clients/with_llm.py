"""The command `llm`: one question, with a model that its settings name."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from asking import ANSWER, GUIDE, MODEL, QUESTION

folder = Path(os.environ["LLM_USER_PATH"])
folder.mkdir(exist_ok=True)
settings = f"- model_id: here\n  model_name: {MODEL}\n  api_base: {GUIDE}/v1\n"
(folder / "extra-openai-models.yaml").write_text(settings, encoding="utf-8")
for flags in ([], ["--no-stream"]):
    command = [sys.executable, "-m", "llm", "-m", "here", "-o", "temperature", "0", "--no-log", *flags, QUESTION]
    assert ANSWER in subprocess.run(command, check=True, capture_output=True, text=True).stdout
