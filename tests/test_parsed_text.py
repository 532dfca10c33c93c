"""Whoever parses foreign text expects that it is nested too deep: Python's JSON and TOML raise RecursionError there,
which is no ValueError and so is easily forgotten."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[1]
_PACKAGES = ("app", "offload", "quantizer", "tui")
_PARSERS = {"json.loads", "json.load", "tomllib.loads", "tomllib.load", "tomlkit.parse"}
_WORD = re.compile(r"\w+")
_CAUGHT = {"RecursionError", "RuntimeError", "Exception", "BaseException"}
# Functions whose text is not foreign, or whose callers catch it, each with the reason.
_EXCEPTED = {
    **dict.fromkeys(
        (
            "app/batch/requests.py body",
            "app/chat/sampling_options.py sent",
            "app/service/api/batches/batches.py _finish",
            "app/service/tools/call_grammar.py _argument_grammar",
            "app/service/tools/call_grammar.py grouped_grammar",
            "app/service/tools/tagged_arguments.py as_one_of",
        ),
        "was parsed before, or written by ourselves a moment ago",
    ),
    **dict.fromkeys(
        (
            "app/chat/store/database.py attachments_of",
            "app/chat/store/database.py chat_of",
            "app/chat/store/database.py message_of",
            "app/chat/store/tables.py contents_of_changes",
            "app/chat/store/tables.py recent_answers",
            "app/service/api/responses/store.py _items",
            "app/service/api/responses/store.py run",
        ),
        "a database of ours, whose pages are checked; what is stored was parsed before",
    ),
    **dict.fromkeys(
        (
            "app/chat/attachments/parse.py _jobs",
            "app/chat/attachments/parse.py main",
            "app/chat/attachments/parser_process.py _exchanged",
            "app/engine/chat_template/render.py main",
            "app/engine/chat_template/template_process.py _exchange",
            "app/engine/fake.py restore_checkpoint",
            "app/engine/fake.py restore_state",
            "app/engine/load/auxiliary_loading.py check_projector",
            "app/engine/media/decode.py main",
            "app/engine/media/decoder_process.py _exchange",
            "app/engine/messages.py decode",
            "quantizer/system/child_request.py decode_message",
        ),
        "a message between our own processes, by which alone it was encoded",
    ),
    "app/acp/stdio.py _message": "a number or a text, by its pattern",
    **dict.fromkeys(
        (
            "app/chat/presets.py shipped_presets",
            "app/library/hub/catalogue.py parse_catalogue",
            "app/library/local/model_sampling.py parse_catalogue_sampling",
            "quantizer/architectures/__init__.py module",
        ),
        "ships with localllm",
    ),
    **dict.fromkeys(
        (
            "app/chat/attachments/documents.py parse_notebook",
            "app/client/connection.py received",
            "app/launch/run.py _npm_version",
            "app/library/external.py _parsed",
            "app/service/tools/literal_arguments.py _plain",
            "app/tools/file_history.py _remove_marked",
            "quantizer/checkpoint/safetensors.py _parse",
            "quantizer/system/installation.py read_source",
        ),
        "the caller expects it",
    ),
}


def _unguarded(path: Path) -> Iterator[str]:
    """Yield the functions of a module that parse without catching RecursionError."""
    tree = ast.parse(path.read_text("utf-8"))
    named = {
        target.id: ast.unparse(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name)
    }

    def catches(kinds: ast.expr | None) -> bool:
        words = {each.id for each in ast.walk(kinds) if isinstance(each, ast.Name)} if kinds is not None else set()
        return any(word in _CAUGHT or _CAUGHT & set(_WORD.findall(named.get(word, ""))) for word in words)

    def visit(node: ast.AST, function: str, is_guarded: bool) -> Iterator[str]:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            function, is_guarded = node.name, False
        if not is_guarded and isinstance(node, ast.Call) and ast.unparse(node.func) in _PARSERS:
            yield function
        if isinstance(node, ast.Try):
            inside = is_guarded or any(catches(handler.type) for handler in node.handlers)
            for part in node.body:
                yield from visit(part, function, inside)
            for part in (*node.handlers, *node.orelse, *node.finalbody):
                yield from visit(part, function, is_guarded)
            return
        if isinstance(node, ast.With):
            is_guarded = is_guarded or any(
                isinstance(item.context_expr, ast.Call)
                and ast.unparse(item.context_expr.func).rpartition(".")[2] == "suppress"
                and any(map(catches, item.context_expr.args))
                for item in node.items
            )
        for part in ast.iter_child_nodes(node):
            yield from visit(part, function, is_guarded)

    yield from visit(tree, "module", False)


def _all_unguarded() -> list[str]:
    return [
        f"{path.relative_to(_ROOT).as_posix()} {function}"
        for package in _PACKAGES
        for path in sorted((_ROOT / package).rglob("*.py"))
        for function in _unguarded(path)
    ]


@pytest.mark.slow
def test_whoever_parses_foreign_text_expects_that_it_is_nested_too_deep() -> None:
    assert sorted(set(_all_unguarded()) - _EXCEPTED.keys()) == []


@pytest.mark.slow
def test_each_exception_is_needed() -> None:
    assert sorted(_EXCEPTED.keys() - set(_all_unguarded())) == []


@pytest.mark.parametrize(
    ("code", "n_found"),
    [
        ("def f():\n    json.loads(a)", 1),
        ("def f():\n    try:\n        json.loads(a)\n    except ValueError: pass", 1),
        ("def f():\n    try:\n        json.loads(a)\n    except (ValueError, RecursionError): pass", 0),
        ("_BAD = (ValueError, RecursionError)\ndef f():\n    try:\n        json.loads(a)\n    except _BAD: pass", 0),
        ("def f():\n    with suppress(OSError, RecursionError):\n        tomllib.loads(a)", 0),
        ("def f():\n    try:\n        b()\n    except Exception:\n        json.loads(a)", 1),
    ],
)
def test_what_is_not_caught_is_found(code: str, n_found: int, tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(code)
    assert len(list(_unguarded(path))) == n_found
