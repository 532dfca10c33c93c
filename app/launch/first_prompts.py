"""How many tokens the first prompt of an agent has: what runs have measured, and the tokenizer of a model.

Owns the file of measurements, `<cache>/first_prompts.json`, which may be deleted at any time.
"""

from __future__ import annotations

import json
from pathlib import Path

from quantizer.system.files import PRIVATE_FILE, explained, private_folder, write_atomically

N_SAMPLE_TOKENS = 569  # of the sample, with the tokenizer of Qwen 2 and 3.5
_NAME = "first_prompts.json"
_MOST_KEPT = 200


def token_sample() -> str:
    """Return a text such as agents send: rules, facts, tools as JSON schemas, code."""
    return (Path(__file__).parent / "token_sample.txt").read_text(encoding="utf-8")


class FirstPrompts:
    """The first prompts that `agent`, a name with a version, was measured with, by model; a file in `cache_dir`.

    A file that is damaged counts as empty.
    """

    def __init__(self, cache_dir: Path, agent: str) -> None:
        self._path = cache_dir / _NAME
        self._agent = agent

    def of(self, model: str) -> int:
        """Return the tokens of the longest one, 0 without any: in a terminal an agent may have more tools."""
        return self._read().get(self._key(model), 0)

    def record(self, model: str, n_tokens: int) -> None:
        """Store a measurement; the oldest are dropped. Raises StorageError."""
        known = self._read()
        n_before = known.pop(self._key(model), 0)
        known[self._key(model)] = max(n_before, n_tokens)
        kept = dict(list(known.items())[-_MOST_KEPT:])
        with explained(f"{self._path} cannot be written", "Check its permissions, or set LOCALLLM_CACHE_DIR."):
            private_folder(self._path.parent)
            write_atomically(self._path, json.dumps(kept, indent=1), sync=False, mode=PRIVATE_FILE)

    def _key(self, model: str) -> str:
        return f"{self._agent} {model}"

    def _read(self) -> dict[str, int]:
        try:
            data = json.loads(self._path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        if not isinstance(data, dict):
            return {}
        return {str(name): n for name, n in data.items() if type(n) is int and n > 0}
