"""Every sequence of roles that a client may send is rendered by every template in every dialect: nothing that was said
is lost, and what a template takes it gets as it was sent.

templates.json is what each template beside llama.cpp's source takes, as `tests.bench.service.role_sequences --table`
measured it. Those templates are not part of this project: where uv has not unpacked that source, all that is tested are
their twins, which take the same.
"""

from __future__ import annotations

import asyncio
import json
from functools import cache
from itertools import pairwise, product
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.service.generation.chat import prompt_of
from app.service.models.served_model import ServedModel
from tests.app.service.role_sequences import (
    DIALECTS,
    HARD,
    TemplateRow,
    conversation,
    fault_of,
    published_templates,
    row_of,
    served,
    twin,
)
from tests.app.service.tools.test_families import TEMPLATES as FAMILIES

TABLE: dict[str, TemplateRow] = json.loads(Path(__file__).with_name("templates.json").read_text(encoding="utf-8"))
PUBLISHED = published_templates()
REFUSED = {
    f"{row['format'] and 'with calls, '}refuses {', '.join(refused) or 'nothing'}": (refused, bool(row["format"]))
    for row in TABLE.values()
    for refused in (row["refused"], row["refused_with_tools"])
}
TWINS = {name: twin(refused, has_calls=has_calls) for name, (refused, has_calls) in REFUSED.items()}
MISTRAL = next(name for name in TWINS if "any_call_id" in name)
TEMPLATES = {**FAMILIES, **TWINS, **PUBLISHED}


@cache  # a model has measured its template then
def model_of(name: str) -> ServedModel:
    return served(TEMPLATES[name])


def faults(name: str, *cases: tuple[str, str, bool]) -> list[tuple[str, str, str, bool]]:
    async def found() -> list[tuple[str, str, str, bool]]:
        made = [(await fault_of(model_of(name), *case[:2], has_tools=case[2]), *case) for case in cases]
        return [each for each in made if each[0]]

    return asyncio.run(found())


@pytest.mark.parametrize("name", PUBLISHED)
async def test_the_table_says_what_each_published_template_takes(name: str) -> None:
    assert await row_of(model_of(name)) == TABLE[name]


@pytest.mark.parametrize("name", TWINS)
async def test_a_twin_refuses_what_the_row_does(name: str) -> None:
    row = await row_of(model_of(name))
    assert row["refused"] == row["refused_with_tools"] == REFUSED[name][0]


def hard_cases(name: str) -> list[tuple[str, str, bool]]:
    """The dialects take turns: what they make of a sequence does not depend on the template."""
    place = list(TEMPLATES).index(name)
    dialects = [list(DIALECTS)[(place + number) % len(DIALECTS)] for number in range(len(HARD))]
    tools = [(place + number) // len(DIALECTS) % 2 == 0 for number in range(len(HARD))]
    return list(zip(HARD, dialects, tools, strict=True))


@pytest.mark.parametrize("name", [*FAMILIES, *TWINS])
def test_hard_sequences_are_rendered_whole(name: str) -> None:
    assert faults(name, *hard_cases(name)) == []


@pytest.mark.parametrize("half", [0, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", PUBLISHED)
def test_hard_sequences_are_rendered_whole_by_a_published_template(name: str, half: int) -> None:
    """Its twin takes the same, and all of them."""
    cases = hard_cases(name)
    begin = (list(PUBLISHED).index(name) + half) % 2
    assert faults(name, *cases[begin::2]) == []


@pytest.mark.slow
@pytest.mark.parametrize("dialect", DIALECTS)
def test_hard_sequences_are_rendered_whole_in_every_dialect(dialect: str) -> None:
    for name, has_tools in product((MISTRAL, "with calls, refuses nothing"), (False, True)):
        assert faults(name, *((letters, dialect, has_tools) for letters in HARD)) == []


@pytest.mark.slow
@given(
    st.sampled_from(sorted(TEMPLATES)),
    st.text(alphabet="SUACDBT", min_size=1, max_size=9),
    st.sampled_from(sorted(DIALECTS)),
    st.booleans(),
)
@settings(max_examples=50)
def test_any_sequence_is_rendered_whole(name: str, letters: str, dialect: str, has_tools: bool) -> None:
    assert faults(name, (letters, dialect, has_tools)) == []


NEMO_AND_SMALL = [name for name in PUBLISHED if "Nemo-Instruct" in name or "Small-3.2" in name]


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("name", [MISTRAL, *NEMO_AND_SMALL])
async def test_ids_of_calls_stay_the_same_so_that_a_longer_chat_begins_with_the_shorter_one(
    name: str, dialect: str
) -> None:
    """With tools Mistral's templates print these before the last question, so that only a turn's prompts do."""
    rounds = {False: ("SUCT", "SUCTCT", "SUCTCTAU", "SUCTCTAUDTT"), True: ("SUCT", "SUCTCT", "SUCTCTDTT")}
    for has_tools, sequences in rounds.items():
        turns = [DIALECTS[dialect](conversation(letters), has_tools=has_tools) for letters in sequences]
        prompts = [(await prompt_of(model_of(name), turn)).prompt.removesuffix("<assistant>") for turn in turns]
        for shorter, longer in pairwise(prompts):
            assert longer.startswith(shorter)
