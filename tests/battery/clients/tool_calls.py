"""Does every tool call parse and fit its schema? Sampled by a real model at random, in every format that models have.

Run: `uv run python tests/battery/clients/tool_calls.py MODEL.gguf [--answers 1000] [--seed 1]`. An answer is offered 1
to 200 of the tools in `tests/battery/clients/tool_schemas.py`. It must call (tool_choice required); or a call begins in
the middle of its text, whole or with its last character still to be sampled; or it may be JSON instead. What the engine
answers is read by the service's own parser; each call must be of an offered tool, with arguments that `jsonschema`
accepts. Calls of answers that are cut off by `max_tokens` are counted apart, if they are not whole.

Random weights seldom end a text that a tag must follow. So the model is helped: every now and then it wants to write
the end of a text or value, and does if the grammar lets it. Exits with 1 where a call fails.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections import Counter, deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import jsonschema
from rich.table import Table

from app.common.answer_text import HARMONY, NO_REASONING, ReasoningTags
from app.engine.grammar.json_grammar import JsonFormat
from app.engine.llama import LlamaBackend, LlamaModel, model
from app.engine.llama.grammar_samplers import GrammarSampler
from app.engine.loop.core import Engine
from app.engine.messages import EngineConfig, Failed, Finished, Output
from app.engine.request import FinishReason, Request, SamplingParams
from app.engine.tuning.tune_results import RuntimeSettings
from app.protocol.chat import Tool, ToolCallDelta, with_deltas
from app.service.generation.generation import AnswerParser, answer_parser
from app.service.generation.harmony import HARMONY_TAGS
from app.service.generation.thinking import DEFAULT_THINKING, reasoning_budget
from app.service.tools.call_grammar import bound_calls
from app.service.tools.formats import ToolFormat, tool_format_of
from app.service.tools.parser import ToolCalling, ToolOptions
from offload.placement.load_parameters import ON_HOST
from tests.app.call_texts import FAMILIES, family
from tests.battery.clients.tool_schemas import many_tools
from tests.battery.tally import finish
from tests.bench.report import show

_N_CTX, _N_TOKENS, _N_AT_ONCE = 2048, 700, 4
_N_OFFERED = (1, 1, 1, 2, 3, 5, 8, 20, 61, 200)
_CHANCE_OF_END = 0.12  # with each token
_JSON = JsonFormat(
    {"type": "object", "properties": {"answer": {"type": "string", "maxLength": 40}}, "required": ["answer"]}
)
_THINKING = ReasoningTags("<think>", "</think>", is_open=True)
_WAYS = ("required", "required", "required thought", "auto", "auto", "begun", "thought", "json")


class WillingModel(LlamaBackend):
    """A model that begins the answer of a seed with its text of `begins`, and wants to write one of `ends` at times."""

    ends: Sequence[str] = ()
    begins: Mapping[int | None, str] = {}
    chance = random.Random(1)

    def new_bindable_sampler(
        self, params: SamplingParams, ignore_eos: bool, history: Sequence[int] = ()
    ) -> WillingSampler:
        sampler = super().new_bindable_sampler(params, ignore_eos, history)
        begin = self.tokenize(self.begins.get(params.seed, ""), False, True)
        return WillingSampler(sampler, begin, [self.tokenize(end, False, True) for end in self.ends], self.chance)


class WillingSampler:
    """A sampler that takes the tokens `begin` first, and those of one of `ends` where its grammar allows them."""

    def __init__(
        self, sampler: GrammarSampler, begin: Sequence[int], ends: Sequence[Sequence[int]], chance: random.Random
    ) -> None:
        self._sampler = sampler
        self._begin = deque(begin)
        self._ends = ends
        self._chance = chance
        self._wanted: deque[int] = deque()
        self.sample_other, self.accept, self.bind = sampler.sample_other, sampler.accept, sampler.bind
        self.is_complete, self.close = sampler.is_complete, sampler.close

    def sample(self, row: int) -> int:
        grammar = self._sampler._grammar
        if grammar is None and self._begin:
            token = self._begin.popleft()
            self.accept(token)
            return token
        self._begin.clear()
        if grammar is not None and not self._wanted and self._ends and self._chance.random() < _CHANCE_OF_END:
            self._wanted.extend(self._chance.choice(self._ends))
        if grammar is not None and self._wanted:
            token = self._wanted.popleft()
            if grammar.allows(token):
                self.accept(token)
                return token
        self._wanted.clear()
        return self._sampler.sample(row)


@dataclass(slots=True)
class Case:
    """An answer to be, and what was read of it so far."""

    name: str
    way: str
    calling: ToolCalling
    request: Request
    parser: AnswerParser
    begin: str
    text: str = ""
    said: str = ""
    calls: list[ToolCallDelta] = field(default_factory=list)

    def take(self, text: str, *, is_final: bool = False) -> None:
        self.text += text
        parsed = self.parser.push(text, is_final=is_final)
        self.said += parsed.text
        self.calls += parsed.calls


@dataclass(slots=True)
class Seen:
    """What came of all answers, by format."""

    n_calls: Counter[str] = field(default_factory=Counter)
    n_answers: Counter[str] = field(default_factory=Counter)
    n_cut: Counter[str] = field(default_factory=Counter)
    n_json: Counter[str] = field(default_factory=Counter)
    by_tool: Counter[str] = field(default_factory=Counter)
    n_failed: int = 0


@cache
def _validator(name: str) -> Any:
    schema = {"type": "object", **_TOOLS[name].parameters}
    return jsonschema.Draft202012Validator(schema)


_TOOLS = {name: Tool(name, "", schema) for name, schema in many_tools(200).items()}


def formats() -> dict[str, tuple[ToolFormat, ReasoningTags]]:
    """Return every format with the tags of its models' reasoning."""
    known: dict[str, tuple[ToolFormat, ReasoningTags]] = {name: (family(name), NO_REASONING) for name in FAMILIES}
    harmony = tool_format_of(HARMONY.opening)
    assert harmony is not None
    return {**known, "gpt-oss": (harmony, HARMONY)}


def draw(chance: random.Random, number: int, names: Sequence[str]) -> Case:
    """Draw an answer that is to be."""
    known, name, way = formats(), chance.choice(names), chance.choice(_WAYS)
    tool_format, tags = known[name]
    if way.endswith("thought") and not tags.has_channels:
        tags = _THINKING
    offered = chance.sample(sorted(_TOOLS), chance.choice(_N_OFFERED))
    options = ToolOptions(
        tools=tuple(_TOOLS[each] for each in offered),
        must_call=way.startswith("required"),
        is_parallel=chance.random() < 0.7,
    )
    calling = ToolCalling(tool_format, options)
    bound = bound_calls(calling, tags, _JSON if way == "json" else None)
    # of a schema's formats a call's grammar has none
    unbound = [notice for notice in bound.notices if "schema's format" not in notice]
    assert not unbound, unbound
    sampling = SamplingParams(
        temperature=chance.choice((0.7, 1.0, 1.5, 3.0)),
        top_k=chance.choice((0, 40)),
        seed=number,
        calls=bound.rules,
        mirostat=chance.choice((0, 0, 0, 0, 2)),
    )
    request = Request(
        request_id=str(number),
        prompt=f"{chance.random()} Call a tool, please.\n",
        sampling=sampling,
        max_tokens=_N_TOKENS,
        visible_tags=HARMONY_TAGS if tags.has_channels else tool_format.tags,
        reasoning=reasoning_budget(tags, "", DEFAULT_THINKING, may_call=True),
    )
    parser = answer_parser(tags, calling, is_verbatim=way == "json")
    return Case(name, way, calling, request, parser, _begin(chance, way, calling, tags))


def _begin(chance: random.Random, way: str, calling: ToolCalling, tags: ReasoningTags) -> str:
    """Return what the model says up to the begin of a call, or almost so far; "" where something binds it before."""
    if way not in ("auto", "begun", "thought"):
        return ""
    tool_format = calling.tool_format
    opening = chance.choice(tool_format.openings or ("",))
    if tool_format.bare and chance.random() < 0.7:
        name, syntax = chance.choice(calling.options.tools).name, tool_format.syntax
        before = "I think.</think>" if way == "thought" else ""
        return f"{before}{syntax.before_first}{syntax.before_name}{name}{syntax.before_arguments[:1]}"
    before = "Well." if not tags.has_channels else "<|channel|>final<|message|>Well.<|end|>"
    if way == "thought":
        thought = f"{opening} I think, {opening}"
        before = f"{thought}</think>Well."
        if tags.has_channels:
            before = "<|channel|>analysis<|message|>I think.<|end|>"
    return before + (opening[:-1] if way == "begun" else opening)


def ends_of(tool_format: ToolFormat) -> list[str]:
    """Return texts that end values and arguments in a format, and that a model should want to write at times."""
    form = tool_format.arguments
    ends = ['"', '"}', "}", "]", "</think>", *(tag for tag in form.tags if not tag.isspace())]
    for call in ({"key": "text"}, {"key": 1}):
        written = form.written(call)
        ends += [written.partition("text")[2], written.partition("1")[2]]
    if hasattr(form, "mark"):
        ends += [f"{form.mark}</{key}>" for tool in _TOOLS.values() for key in tool.parameters.get("properties", {})]
    return [end for end in ends if end]


def faults_of(case: Case, reason: FinishReason) -> Iterator[str]:
    """Yield what is wrong with a finished answer."""
    calls = with_deltas((), case.calls)
    is_cut = reason is FinishReason.LENGTH
    must_call = case.way.startswith("required") or (case.begin and case.way != "begun")
    if must_call and not calls and not is_cut:
        yield "no call"
    if case.way.startswith("required") and case.said.strip() and not is_cut:
        yield f"text beside calls: {case.said[:80]!r}"
    if case.way == "json" and not calls and not is_cut:
        try:
            json.loads(case.said)
        except ValueError as error:
            yield f"no JSON: {error}: {case.said[:80]!r}"
    for number, call in enumerate(calls):
        arguments = call.arguments_object()
        if arguments is None:
            if is_cut and number == len(calls) - 1:
                continue
            yield f"{call.name}: no JSON object: {call.arguments[:200]}"
        elif not (is_cut and number == len(calls) - 1):
            for misfit in islice(_validator(call.name).iter_errors(arguments), 1):
                yield f"{call.name}: {misfit.message[:200]}: {call.arguments[:300]}"


def run(backend: WillingModel, cases: Sequence[Case], seen: Seen) -> None:
    """Answer `cases` together and count what comes of them."""
    known = {case.request.request_id: case for case in cases}

    def take(event: Output | Finished | Failed) -> None:
        case = known[event.request_id]
        if isinstance(event, Output):
            case.take(event.text)
            return
        seen.n_answers[case.name] += 1
        if isinstance(event, Failed):
            report(case, [f"the answer failed: {event.error.cause}"], seen)
            return
        case.take("", is_final=True)
        report(case, list(faults_of(case, event.reason)), seen)
        calls = with_deltas((), case.calls)
        is_open = event.reason is FinishReason.LENGTH and bool(calls) and calls[-1].arguments_object() is None
        seen.n_calls[case.name] += len(calls) - is_open
        seen.by_tool.update(call.name.rstrip("_0123456789") for call in calls[: len(calls) - is_open])
        seen.n_cut[case.name] += is_open
        seen.n_json[case.name] += case.way == "json" and not calls

    engine = Engine(backend, take)
    for case in cases:
        engine.submit(case.request)
    while not engine.is_idle:
        engine.step()
    engine.close()
    for sequence_id in range(backend.facts.n_seq_max):
        backend.truncate(sequence_id, 0)


def report(case: Case, faults: Collection[str], seen: Seen) -> None:
    """Print the faults of an answer."""
    seen.n_failed += bool(faults)
    for fault in faults:
        print(f"answer {case.request.request_id}, {case.name}, {case.way}: {fault}\n  {case.text[:600]!r}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--answers", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--formats", default="", help="names with commas between (all)")
    parser.add_argument("--threads", type=int, default=1, help="of the engine (1)")
    options = parser.parse_args()
    names = options.formats.split(",") if options.formats else list(formats())
    model.LlamaBackend = WillingModel  # type: ignore[misc]
    loaded = LlamaModel(options.model, ON_HOST, False, lambda _fraction: True)
    settings = RuntimeSettings(options.threads, False, False)
    backend = loaded.context(EngineConfig(n_ctx=_N_CTX, n_sequences=_N_AT_ONCE), settings)
    assert isinstance(backend, WillingModel)
    seen, begun_s = Seen(), time.monotonic()
    for number in range(0, options.answers, _N_AT_ONCE):
        chance = random.Random(options.seed * 1_000_003 + number)
        name = chance.choice(names)
        backend.chance, backend.ends = chance, ends_of(formats()[name][0])
        cases = [draw(chance, number + index, [name]) for index in range(_N_AT_ONCE)]
        backend.begins = {case.request.sampling.seed: case.begin for case in cases}
        run(backend, cases, seen)
    backend.close()
    loaded.close()
    made = Table("format", "answers", "calls", "cut off", "JSON", box=None, pad_edge=False)
    for name in names:
        counts = (seen.n_answers[name], seen.n_calls[name], seen.n_cut[name], seen.n_json[name])
        made.add_row(name, *map(str, counts))
    totals = (seen.n_answers.total(), seen.n_calls.total(), seen.n_cut.total(), seen.n_json.total())
    made.add_row("all", *map(str, totals))
    show(made)
    print(f"{len(seen.by_tool)} of the schemas were called, each {min(seen.by_tool.values(), default=0)} times or more")
    print(f"{time.monotonic() - begun_s:.0f} s")
    finish(seen.n_answers.total(), seen.n_failed, options.seed)


if __name__ == "__main__":
    main()
