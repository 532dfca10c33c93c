"""What a tokenizer puts around a text: the post-processor of a tokenizer.json, read as far as llama.cpp can do it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["Frame", "read_frame"]

# Older steps that name their two tokens instead of a template, and how often the second stands between two texts.
_FIXED = {"BertProcessing": 1, "RobertaProcessing": 2}


@dataclass(frozen=True, slots=True)
class Frame:
    """Tokens before and after one text, and between two; empty where there are none."""

    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    between: tuple[str, ...] = ()


def read_frame(step: object) -> Frame:
    """The frame that a `post_processor` object describes, the first that is not empty when there are several steps."""
    if not isinstance(step, dict):
        return Frame()
    kind, inner = step.get("type"), step.get("processors")
    if kind == "Sequence" and isinstance(inner, list):
        return next((frame for frame in map(read_frame, inner) if frame != Frame()), Frame())
    if kind in _FIXED:
        begin, end = _first_text(step.get("cls")), _first_text(step.get("sep"))
        return Frame(begin, end, end * _FIXED[kind])
    return _of_template(step) if kind == "TemplateProcessing" else Frame()


def _of_template(step: Mapping[str, Any]) -> Frame:
    single, pair = _names(step.get("single")), _names(step.get("pair"))
    if (False, "A") not in single:
        return Frame()
    text = single.index((False, "A"))
    between: tuple[str, ...] = ()
    if (False, "A") in pair and (False, "B") in pair:
        between = _special(pair[pair.index((False, "A")) : pair.index((False, "B"))])
    return Frame(_special(single[:text]), _special(single[text:]), between)


def _names(template: object) -> list[tuple[bool, str]]:
    """(whether it is a special token, its name) of each part."""
    parts = template if isinstance(template, list) else []
    return [
        (key == "SpecialToken", str(value.get("id")))
        for part in parts
        if isinstance(part, dict)
        for key, value in part.items()
        if isinstance(value, dict)
    ]


def _special(names: list[tuple[bool, str]]) -> tuple[str, ...]:
    return tuple(name for is_special, name in names if is_special)


def _first_text(pair: object) -> tuple[str, ...]:
    return (pair[0],) if isinstance(pair, list) and pair and isinstance(pair[0], str) else ()
