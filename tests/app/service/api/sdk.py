"""OpenAI's and Anthropic's own clients, imported by the first test that uses one.

Each worker collects every file of tests, and importing both takes 2.3 s of processor time: `sdk.anthropic` in a test is
paid by the workers that run such tests.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import anthropic as anthropic
    import openai as openai


def __getattr__(name: str) -> Any:
    if name in {"anthropic", "openai"}:
        return import_module(name)
    raise AttributeError(name)
