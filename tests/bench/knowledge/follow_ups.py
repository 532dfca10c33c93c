"""Does a question that goes on from the one before find its document? Recall@5 by words alone over the documents of
`recall`, of the question as it was typed and of what the chat searches with.

Run: `python -m tests.bench.knowledge.follow_ups [--data FOLDER]`. 42 questions that go on from one of `QUESTIONS` and
have the same documents, written before anything was measured; and what a change of the subject costs: each of the 60
behind one about something else.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

from rich.table import Table

from app.knowledge.reading import read_folder
from app.knowledge.search import find_hits, searched_words
from app.knowledge.store import KnowledgeStore
from tests.bench.knowledge.questions import QUESTIONS, write_documents
from tests.bench.report import show

_TOP = 5
_APART = 7  # questions this far apart are about different things
# number of the first question -> the one that follows it
FOLLOW_UPS = {
    0: "And only skip the rest of this round?",
    1: "What about empty lists?",
    2: "And why is it an error without that?",
    3: "Does it have to come before the first use?",
    4: "How do I switch them off?",
    5: "Can it have default values?",
    6: "And for shifting to the left?",
    7: "And as hexadecimal?",
    8: "And over several lines?",
    9: "What about deleting an item?",
    10: "What if it returns a value there?",
    11: "And from another one of the same kind?",
    13: "Can I still reach it from outside?",
    14: "And whether it begins with something?",
    15: "And exponentiation?",
    16: "Is it certain that this happens?",
    17: "How do I print a variable there?",
    18: "And required ones?",
    19: "Can it be shown as HTML?",
    20: "And the largest first?",
    21: "And insert it right away?",
    22: "And write them?",
    23: "How do I round it to two places?",
    25: "How do I empty it?",
    26: "How long should they be?",
    27: "And the most common one?",
    28: "And with an indent?",
    29: "From the command line too?",
    30: "With an encrypted connection?",
    31: "And copy one?",
    32: "And a whole folder like that?",
    33: "And give it some input?",
    34: "And save them again?",
    35: "And only the outermost one?",
    36: "In the other byte order?",
    37: "Which day does the week begin with?",
    38: "How does the first one notice when one of them dies?",
    39: "And the reverse, from an address to its name?",
    40: "And how do I undo it?",
    41: "And leave it again?",
    45: "How do they send messages to each other?",
    46: "How do I suppress some of those reports?",
}


def recall(store: KnowledgeStore, asked: list[tuple[str, str, str]], words: Callable[[str, str], str]) -> int:
    """Return how many of the questions find a document; `asked` has what was asked before, the question, documents."""
    n_found = 0
    for before, question, answers in asked:
        hits = find_hits(store, words(before, question), b"", _TOP)
        n_found += any(hit.passage.path.as_posix().endswith(tuple(answers.split())) for hit in hits)
    return n_found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="keep the documents and what was read of them here")
    options = parser.parse_args()
    holder = nullcontext(str(options.data)) if options.data else tempfile.TemporaryDirectory()
    with holder as folder:
        top = Path(folder).resolve()
        places = write_documents(top / "documents")

        def paths(answers: str) -> str:
            return " ".join(f"/{places[name]}" for name in answers.split())

        going_on = [
            (QUESTIONS[number][0], question, paths(QUESTIONS[number][1])) for number, question in FOLLOW_UPS.items()
        ]
        apart = [
            (QUESTIONS[number - _APART][0], question, paths(answers))
            for number, (question, answers) in enumerate(QUESTIONS)
        ]
        with KnowledgeStore(top / "data") as store, store.writing_alone():
            for _ in read_folder(store, store.add_folder(top / "documents")):
                pass
            table = Table("questions", "as typed", "searched with", "of")
            for name, asked in (("that go on", going_on), ("about something else", apart)):
                typed = recall(store, asked, lambda _before, question: question)
                chosen = recall(store, asked, lambda before, question: searched_words((before, question)))
                table.add_row(name, str(typed), str(chosen), str(len(asked)))
            show(table)


if __name__ == "__main__":
    main()
