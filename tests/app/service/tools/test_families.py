"""Answers of each family, recorded from published templates and model cards, and the templates they go back into.

Each line of family_outputs.jsonl is an answer as the model writes it, with its parts. `source` says where its form is
published; templates are those in models/templates of llama.cpp as vendored in llama-cpp-python 0.3.36, and what of them
concerns answers is written anew in family_templates; both gave the same text for each line but those whose `rendered`
is null, which are variants that models also write. `rendered` is what becomes of an answer that the template changes.
"""

from __future__ import annotations

import asyncio
import json
import re
from functools import cache
from pathlib import Path
from typing import Any, cast

import pytest

from app.common.answer_text import reasoning_tags_of
from app.engine.request import Request
from app.library.local.model_files import ModelRef
from app.protocol.chat import AnswerDelta, Tool, joined_deltas
from app.service.generation.chat import ChatTurn, prompt_of
from app.service.generation.generation import Generation, answer_parser
from app.service.models.model_file import ModelFile
from app.service.models.served_model import ServedModel
from app.service.tools.formats import tool_format_of
from app.service.tools.parser import ToolOptions
from tests.app.service.generation.test_chat import HereAndNow
from tests.app.service.template_messages import messages_of

HERE = Path(__file__).parent
TEMPLATES = {path.stem: path.read_text("utf-8") for path in sorted((HERE / "family_templates").glob("*.jinja"))}
OUTPUTS = [json.loads(line) for line in (HERE / "family_outputs.jsonl").read_text("utf-8").splitlines()]
TEXT, NUMBER = {"type": "string"}, {"type": "number"}
PARAMETERS: dict[str, dict[str, Any]] = {
    "get_weather": {"city": TEXT, "days": {"type": "integer"}},
    "now": {},
    "write_file": {"content": TEXT, "path": TEXT},
    "edit": {"all": {"type": "boolean"}, "new": TEXT, "old": TEXT, "path": TEXT},
    "search": {"filters": {"type": "object"}, "query": TEXT, "tags": {"type": "array", "items": TEXT}},
    "set": {"name": TEXT, "note": {"type": ["string", "null"]}, "value": NUMBER},
}
OFFER = ToolOptions(
    tools=tuple(Tool(name, "", {"type": "object", "properties": found}) for name, found in PARAMETERS.items())
)
HELLO = {"role": "user", "content": "Hello"}


@cache  # what a model measures of its template takes most of the time
def model_of(family: str) -> ServedModel:
    file = ModelFile(chat_template=TEMPLATES[family], bos_token="", eos_token="</s>", n_ctx_train=1, n_bytes=1)
    no_engine = cast("Any", None)
    return ServedModel(ModelRef("test", Path("test.gguf")), file, no_engine, no_engine, HereAndNow())


def prompt(family: str, *messages: dict[str, Any]) -> Generation:
    turn = ChatTurn(messages=messages_of(messages), request=Request(request_id="1", prompt=""), tools=OFFER)
    return asyncio.run(prompt_of(model_of(family), turn))


@cache
def first_prompt(family: str) -> Generation:
    return prompt(family, HELLO)


def parsed(made: Generation, text: str, size: int) -> AnswerDelta:
    """Return the parts of `text`, coming in pieces of `size` characters."""
    parser = answer_parser(made.tags, made.tool_calling)
    parts = [parser.push(text[begin : begin + size]) for begin in range(0, len(text), size)]
    parts.append(parser.push("", is_final=True))
    return AnswerDelta(
        "".join(part.text for part in parts),
        reasoning="".join(part.reasoning for part in parts),
        calls=joined_deltas(call for part in parts for call in part.calls),
    )


@pytest.mark.parametrize("line", OUTPUTS, ids=lambda line: f"{line['family']}: {line['case']}")
def test_an_answer_is_parsed_in_chunks_of_every_size(line: dict[str, Any]) -> None:
    """Each in pieces as short as tokens are, and in some of the longer ones: the answers of a family take turns."""
    made, text = first_prompt(line["family"]), line["output"]
    for size in [1, 2, 3, 4, *range(5 + OUTPUTS.index(line) % 4, 24, 4), len(text) // 2 + 1, len(text) + 1]:
        whole = parsed(made, text, size)
        calls = [[call.name, json.loads(call.arguments)] for call in whole.calls]
        assert (whole.reasoning, whole.text, calls) == (line["reasoning"], line["text"], line["calls"]), size


@pytest.mark.parametrize(
    "line",
    [
        line
        for line in OUTPUTS
        if line["family"] in ("muse-glimmer", "functionary-3.2")
        and line["case"] not in ("a thought that is not closed", "a call of a namespace")
    ],
    ids=lambda line: f"{line['family']}: {line['case']}",
)
def test_an_answer_that_is_cut_between_tokens_shows_no_header(line: dict[str, Any]) -> None:
    made, text = first_prompt(line["family"]), line["output"]
    special = [
        place for found in re.finditer(r"<\|\w+\|>|>>>", text) for place in range(found.start() + 1, found.end())
    ]
    for end in sorted({*range(len(text))} - {*special}):
        cut = parsed(made, text[:end], len(text))
        assert line["text"].startswith(cut.text), text[:end]
        assert line["reasoning"].startswith(cut.reasoning), text[:end]
        assert [call.name for call in cut.calls] == [name for name, _ in line["calls"]][: len(cut.calls)]


@pytest.mark.parametrize(
    ("family", "begun"),
    [
        ("functionary-3.2", ">>>all\nOnce upon"),
        ("muse-glimmer", "<|start|>assistant to=user<|message|>Once upon"),
        ("gigachat-3", "assistant<|role_sep|>\nOnce upon"),
        ("command-r-plus", "<|CHATBOT_TOKEN|>Once upon"),
    ],
)
def test_an_answer_that_was_begun_goes_on_behind_its_header(family: str, begun: str) -> None:
    said = messages_of([HELLO, {"role": "assistant", "content": "Once upon"}])
    turn = ChatTurn(messages=said, request=Request(request_id="1", prompt=""), tools=OFFER, continues=True)
    made = asyncio.run(prompt_of(model_of(family), turn))
    assert made.prompt.endswith(begun)
    assert made.prompt.count("Once upon") == 1
    assert parsed(made, " a time.", 3) == AnswerDelta(" a time.")


@pytest.mark.parametrize("family", ["functionary-3.2", "muse-glimmer"])
def test_a_model_that_writes_no_header_is_shown_as_it_is_where_no_tool_is_offered(family: str) -> None:
    turn = ChatTurn(messages=messages_of([HELLO]), request=Request(request_id="1", prompt=""))
    made = asyncio.run(prompt_of(model_of(family), turn))
    assert parsed(made, "Hello! 1 < 2", 2) == AnswerDelta("Hello! 1 < 2")


@pytest.mark.parametrize(
    "line",
    [line for line in OUTPUTS if line.get("rendered", "") is not None],
    ids=lambda line: f"{line['family']}: {line['case']}",
)
def test_an_answer_goes_back_into_the_template_as_the_model_wrote_it(line: dict[str, Any]) -> None:
    answer: dict[str, Any] = {"role": "assistant", "content": line["text"]}
    if line["reasoning"]:
        answer["reasoning_content"] = line["reasoning"]
    results = []
    for number, (name, arguments) in enumerate(line["calls"]):
        function = {"name": name, "arguments": arguments}
        answer.setdefault("tool_calls", []).append(
            {"id": f"call{number}abcd", "type": "function", "function": function}
        )
        results.append({"role": "tool", "tool_call_id": f"call{number}abcd", "content": "done"})
    before = first_prompt(line["family"]).prompt
    after = prompt(line["family"], HELLO, answer, *results).prompt
    if "rendered" in line:
        assert line["rendered"] in after
    else:
        assert after.startswith(before + line["output"]), "so its prefix stays in the cache"


def test_a_turn_that_the_template_ends_behind_results_is_begun_again() -> None:
    gemma = tool_format_of(TEMPLATES["gemma-4"])
    assert gemma is not None
    ended = "<|tool_response>response:now{value:1}<tool_response|>Let me see.<turn|>\n"
    assert gemma.continued(ended) == f"{ended}<|turn>model\n", "google/gemma-4-31B-it with text, calls and results"
    assert gemma.continued("<tool_response|>") == "<tool_response|>"


def test_every_family_has_twenty_answers_and_reasoning_where_it_thinks() -> None:
    for family, template in TEMPLATES.items():
        lines = [line for line in OUTPUTS if line["family"] == family]
        assert len(lines) >= 20, family
        assert sum(bool(line["calls"]) for line in lines) >= 12, family
        thinks = reasoning_tags_of(template, "").opening != ""
        assert thinks == any(line["reasoning"] for line in lines), family
