"""Measures the guide on what it was not trained on, with transformers and greedy decoding.

    uv run --group train python -m assets.guide.evaluate

Held-out questions (corpus/heldout.md) are graded by the facts of their topic; copies, edits and infills are right when
they equal what was wanted, character by character. Prints the figures that README.md reports.
"""

from __future__ import annotations

import argparse
import json
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from assets.guide.copying import Turn, editing_turn, fenced
from assets.guide.infill import infill
from assets.guide.prose import paragraph
from assets.guide.pycode import program
from assets.guide.topics import CORPUS, read_beyond, read_topics
from assets.guide.vocabulary import FOLDER

SEED = 20261  # training draws from other streams
BEYOND_FACT = "localllm recommend"


class Guide:
    """A checkpoint with its tokenizer, answering greedily."""

    def __init__(self, folder: Path) -> None:
        self._tokenizer = AutoTokenizer.from_pretrained(folder)
        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)

    def answer(self, question: str) -> str:
        return self.complete(self._prompt(question))

    def agreement(self, turn: Turn) -> tuple[int, int]:
        """Return how many tokens of the wanted answer are the likeliest after those before, and how many it has."""
        prompt, wanted = self._ids(self._prompt(turn.user)), self._ids(turn.guide)
        with torch.inference_mode():
            scores = self._model(torch.tensor([prompt + wanted])).logits[0, len(prompt) - 1 : -1]
        return int((scores.argmax(-1) == torch.tensor(wanted)).sum()), len(wanted)

    def complete(self, prompt: str) -> str:
        ids = torch.tensor([self._ids(prompt)])
        n_new = min(2048 - ids.shape[1], ids.shape[1] + 160)
        with torch.inference_mode():
            output = self._model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=n_new, do_sample=False, pad_token_id=0
            )
        return str(self._tokenizer.decode(output[0, ids.shape[1] :], skip_special_tokens=True))

    def _prompt(self, question: str) -> str:
        messages = [{"role": "user", "content": question}]
        return str(self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))

    def _ids(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False))


@dataclass(frozen=True, slots=True)
class Case:
    """A request and whether an answer to it is right."""

    request: str
    is_right: Callable[[str], bool]


def held_out_questions() -> Iterator[Case]:
    """Yield the phrasings of corpus/heldout.md."""
    topics = read_topics()
    for block in re.split(r"\n\n", (CORPUS / "heldout.md").read_text(encoding="utf-8"))[1:]:
        name, *lines = block.strip().splitlines()
        name = name.removesuffix(":")
        is_right = topics[name].is_right if name != "beyond" else _declines
        for line in lines:
            question = line.removeprefix("? ")
            yield Case(question[0].upper() + question[1:] + "?", is_right)


def passages() -> list[str]:
    """Return the hand-written passages of 120 to 160 tokens, none of them in training."""
    return (CORPUS / "passages.txt").read_text(encoding="utf-8").strip().split("\n---\n")


def copies() -> Iterator[Case]:
    for passage in passages():
        yield _exact(_copying(passage))
        yield _exact(Turn(f"{passage}\n\nRepeat the text above.", passage))


def sentence_copies() -> Iterator[Case]:
    """Yield the first sentences of the passages, some 20 tokens each."""
    for passage in passages():
        yield _exact(_copying(passage.split(". ")[0] + "."))


def long_copies() -> Iterator[Case]:
    """Yield texts of 500 to 600 tokens, four passages each."""
    for first in range(0, len(passages()), 2):
        yield _exact(_copying("\n\n".join((passages() * 2)[first : first + 4])))


def code_copies() -> Iterator[Case]:
    for seed in range(12):
        code = fenced(program(random.Random(SEED + seed), 4))
        yield _exact(Turn(f"Repeat this code exactly:\n\n{code}", code))


def edits() -> Iterator[Case]:
    for seed in range(24):
        yield _exact(editing_turn(random.Random(SEED + seed), 40))


def prose_copies() -> Iterator[Case]:
    for seed in range(12):
        text = paragraph(random.Random(SEED + seed), 8)
        yield _exact(Turn(f"Copy the following text:\n\n{text}", text))


def single_line_infills() -> Iterator[Case]:
    rng = random.Random(SEED)
    n_cases = 0
    while n_cases < 30:
        sample = infill(rng)
        if len(sample.middle) > 3 and "\n" not in sample.middle:
            n_cases += 1
            yield Case(sample.prompt(), sample.middle.__eq__)


KINDS = (
    held_out_questions,
    sentence_copies,
    copies,
    long_copies,
    prose_copies,
    code_copies,
    edits,
    single_line_infills,
)


def measure(guide: Guide, names: list[str], is_verbose: bool) -> dict[str, tuple[int, int]]:
    """Return, for each kind of task, how many cases were right and how many there were."""
    results = {}
    for kind in (kind for kind in KINDS if not names or kind.__name__ in names):
        respond = guide.complete if kind is single_line_infills else guide.answer
        n_right = n_cases = 0
        for case in kind():
            answer = respond(case.request)
            is_right = case.is_right(answer)
            n_right, n_cases = n_right + is_right, n_cases + 1
            if is_verbose and not is_right:
                print(f"--- {kind.__name__}: {case.request[-300:]}\n=> {answer[:400]}", flush=True)
        results[kind.__name__] = (n_right, n_cases)
        print(f"{kind.__name__}: {n_right} of {n_cases}", flush=True)
    return results


def copied_tokens(guide: Guide) -> tuple[int, int]:
    """Return how many tokens of the passages are likeliest when all before them are right, and how many there are."""
    counts = [guide.agreement(_copying(passage)) for passage in passages()]
    return sum(right for right, _ in counts), sum(n for _, n in counts)


def _copying(text: str) -> Turn:
    return Turn(f"Repeat this text exactly:\n\n{text}", text)


def _exact(turn: Turn) -> Case:
    return Case(turn.user, turn.guide.__eq__)


def _declines(answer: str) -> bool:
    return BEYOND_FACT in answer and answer.startswith(read_beyond().answer[:12])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=FOLDER)
    parser.add_argument("--only", nargs="*", default=[], metavar="KIND", help="such as copies or edits; default: all")
    parser.add_argument("--verbose", action="store_true", help="print every wrong answer")
    parser.add_argument("--json", action="store_true", help="print the figures as one JSON object at the end")
    arguments = parser.parse_args()
    guide = Guide(arguments.model)
    results = measure(guide, arguments.only, arguments.verbose)
    results["copied_tokens"] = copied_tokens(guide)
    print("copied_tokens: {} of {}".format(*results["copied_tokens"]))
    if arguments.json:
        print(json.dumps(results))


if __name__ == "__main__":
    main()
