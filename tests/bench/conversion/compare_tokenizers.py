"""llama.cpp's ids, from a GGUF without weights that we write, against the original tokenizer's on 300 tricky texts.

    uv run python tests/bench/conversion/compare_tokenizers.py [--only NAME] [--show N]

Prints one line a tokenizer and the first texts that differ. Some need the sentencepiece package.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from quantizer.checkpoint.config import Config
from quantizer.gguf.header import encode_entry, encode_header
from quantizer.tokenizers import TokenizerVocabulary, read_vocabulary, vocabulary_entries
from tests.bench.models.tokenizer_zoo import ZOO, Resident
from tests.bench.models.tricky_texts import tricky_texts

_ORACLE = Path(__file__).parents[2] / "quantizer" / "token_oracle.py"
_N_ROWS = 2_432  # of an imaginary embedding: more than any of the tokenizers has


def main() -> None:
    """Compare, print, and keep the folders for another converter where told to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="part of the names to compare")
    parser.add_argument("--show", type=int, default=2, help="texts that differ to print for each")
    parser.add_argument("--keep", type=Path, help="folder to leave tokenizers and GGUFs in")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        for index, resident in enumerate(ZOO):
            if options.only.lower() in resident.name.lower():
                compare(resident, (options.keep or Path(scratch)) / f"{index:02d}", options.show)


def compare(resident: Resident, folder: Path, n_shown: int) -> None:
    """Build, convert and print one line."""
    try:
        encode = resident.build(folder)
    except ModuleNotFoundError as error:
        print(f"{resident.name:48} left out: no {error.name}")
        return
    (folder / "config.json").write_text(json.dumps({"vocab_size": _N_ROWS}))
    vocabulary = read_vocabulary(folder, Config({"vocab_size": _N_ROWS}))
    texts = tricky_texts()
    found = ask(write_vocabulary(folder / "vocabulary.gguf", vocabulary), texts, has_frame(folder))
    wrong = [(text, encode(text), ids) for text, ids in zip(texts, found, strict=True) if encode(text) != ids]
    name = vocabulary.alphabet.pre_tokenizer if vocabulary.alphabet.model == "gpt2" else vocabulary.alphabet.model
    verdict = "" if name == resident.expects else f" (not {resident.expects})"
    print(f"{resident.name:48} {name:14} {len(texts) - len(wrong):3} of {len(texts)} equal{verdict}", flush=True)
    for text, expected, ids in wrong[:n_shown]:
        print(f"    {text!r}\n      original  {named(vocabulary, expected)}\n      llama.cpp {named(vocabulary, ids)}")


def has_frame(folder: Path) -> bool:
    """SentencePiece alone neither puts special tokens around a text nor looks for them in it."""
    return (folder / "tokenizer.json").exists()


def write_vocabulary(path: Path, vocabulary: TokenizerVocabulary) -> Path:
    """A GGUF with a vocabulary and nothing else."""
    architecture = encode_entry("general.architecture", "llama", "str")
    path.write_bytes(encode_header([architecture, *vocabulary_entries(vocabulary)], []))
    return path


def ask(model: Path, texts: list[str], is_framed: bool) -> list[list[int]]:
    """llama.cpp's ids of each text."""
    request = json.dumps({"texts": texts, "is_framed": is_framed})
    done = subprocess.run(
        [sys.executable, str(_ORACLE), str(model)], input=request, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        sys.exit(done.stderr[-2_000:])
    answers: list[list[int]] = json.loads(done.stdout)
    return answers


def named(vocabulary: TokenizerVocabulary, ids: list[int]) -> str:
    """Ids as their tokens."""
    return " ".join(repr(vocabulary.tokens[i].text) for i in ids)[:400]


if __name__ == "__main__":
    main()
