"""Damages the tokenizer, config and safetensors of small checkpoints in many ways and plans the conversion of each.

    uv run python tests/battery/damage/fuzz_checkpoint.py [--mutations 500] [--seed 1]

The checkpoints have a tokenizer of each kind. A mutant must be refused with a typed error, within two seconds of the
processor; or its GGUF must pass validation, and llama.cpp must survive its vocabulary: what a conversion makes is
never a file that we would refuse. Seeded.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import random
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from quantizer.checkpoint.safetensors import read_object
from quantizer.convert.checkpoint_source import config_header
from quantizer.gguf.tensor_types import file_type_named
from quantizer.gguf.validation import validate_gguf
from quantizer.system.errors import UserError
from quantizer.write.quantize_plan import QuantizePlan, plan
from tests.battery.damage.hostile_json import damaged_bytes, damaged_json
from tests.battery.damage.vocabularies import VocabularyChild
from tests.battery.tally import finish
from tests.quantizer.checkpoints import TinyLlama, tokenizer, tokenizer_config
from tests.quantizer.tokenizer_files import (
    BYTES,
    piece_model,
    roberta,
    sentence_bpe,
    unigram,
    word_pieces,
    write,
    xlm_roberta,
)

MAX_S = 2.0
_N_ROWS = 600  # of the embedding: more than any of the tokenizers has
_WEIGHTS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
_BUILDERS: dict[str, Callable[[], tuple[dict[str, object], dict[str, object]]]] = {
    "byte-level BPE": lambda: (tokenizer(), tokenizer_config()),
    "BPE with byte fallback": sentence_bpe,
    "unigram": unigram,
    "XLM-R": xlm_roberta,
    "RoBERTa": roberta,
    "WordPiece": word_pieces,
}


def checkpoints(folder: Path) -> list[Path]:
    """Write a checkpoint with each kind of tokenizer into `folder`, which the mutants are made of."""
    made = []
    for name in (*_BUILDERS, "SentencePiece"):
        made.append(TinyLlama(n_layers=1, n_embd=64, n_ff=64, n_shards=2, n_vocab=_N_ROWS).write(folder / name))
        (made[-1] / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 2], "pad_token_id": 0}))
        if name in _BUILDERS:
            write(made[-1], *_BUILDERS[name]())
        else:
            (made[-1] / "tokenizer.json").unlink()
            (made[-1] / "tokenizer.model").write_bytes(_pieces())
    return made


def _pieces() -> bytes:
    specials = [("<unk>", 0.0, 2), ("<s>", 0.0, 3), ("</s>", 0.0, 3), *((name, 0.0, 6) for name in BYTES)]
    words = [(word, -float(index), 1) for index, word in enumerate(("▁", "h", "e", "l", "o", "he", "ll", "▁he"))]
    return piece_model([*specials, *words], [(3, 2)], [(3, 1), (4, 0)])


def damage(folder: Path, chance: random.Random) -> str:
    """Damage one file of the checkpoint in `folder`, and return what was done."""
    path = chance.choice([path for path in sorted(folder.iterdir()) if path.is_file()])
    data = path.read_bytes()
    if path.suffix == ".safetensors":
        what, data = _damaged_weights(data, chance)
    elif path.suffix == ".json" and chance.random() < 0.75:
        what, text = damaged_json(json.loads(data), chance)
        data = text.encode()
    else:
        what, data = damaged_bytes(data, chance)
    path.write_bytes(data)
    return f"{folder.name}, {path.name}: {what}"


def _damaged_weights(data: bytes, chance: random.Random) -> tuple[str, bytes]:
    """Damage the header of a file of safetensors, its JSON with the length that it then has, or the file as bytes."""
    length = int.from_bytes(data[:8], "little")
    if chance.random() < 0.6:
        what, text = damaged_json(json.loads(data[8 : 8 + length]), chance)
        header = text.encode()
        return what, len(header).to_bytes(8, "little") + header + data[8 + length :]
    what, head = damaged_bytes(data[: 8 + length], chance)
    return what, head + data[8 + length :]


def outcome(folder: Path, output: Path, vocabularies: VocabularyChild) -> str:
    """Return what became of a mutant."""
    begun_s = time.process_time()
    try:
        planned = _planned(folder, output)
    except UserError as error:
        return f"late: {error}" if time.process_time() - begun_s > MAX_S else "refused"
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-3:]
        return f"{type(error).__name__}: {error} in {', '.join(f'{at.name} ({at.lineno})' for at in where)}"
    write_header(planned, output)
    try:
        validate_gguf(output)
    except UserError as error:
        return f"converted, and its file refused: {error}"
    answer = vocabularies.answer(output)
    return f"converted, {answer}" if answer == "loaded" else f"converted, and its vocabulary {answer}"


def _planned(folder: Path, output: Path) -> QuantizePlan:
    """Plan a conversion, and the model as one that is not downloaded is planned: from config.json alone."""
    with contextlib.suppress(UserError):
        config_header(read_object(folder / "config.json"), folder.name)
    return plan(folder, file_type_named("Q8_0"), output)


def write_header(planned: QuantizePlan, path: Path) -> None:
    """Write the file without its weights: zeros that take no space."""
    (shard,) = planned.shards
    with path.open("wb") as file:
        file.write(shard.header)
        file.truncate(planned.n_bytes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mutations", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    chance = random.Random(options.seed)
    tally: collections.Counter[str] = collections.Counter()
    with tempfile.TemporaryDirectory() as scratch, VocabularyChild() as vocabularies:
        originals = checkpoints(Path(scratch, "originals"))
        output = Path(scratch, "out.gguf")
        for original in originals:
            if (result := outcome(original, output, vocabularies)) != "converted, loaded":
                print(f"{original.name}, undamaged: {result}")
                tally["an original is not converted"] += 1
        for _ in range(options.mutations):
            original = chance.choice(originals)
            mutant = Path(scratch, original.name)
            _copy(original, mutant)
            what = damage(mutant, chance)
            result = outcome(mutant, output, vocabularies)
            tally[result.partition(":")[0]] += 1
            if not is_sound(result):
                print(f"{what}: {result}", flush=True)
    for result, count in tally.most_common():
        print(f"{count:5}  {result}")
    finish(options.mutations, sum(count for result, count in tally.items() if not is_sound(result)), options.seed)


def is_sound(result: str) -> bool:
    """Return whether an outcome is one of the two that a mutant may have."""
    return result in ("refused", "converted, loaded")


def _copy(original: Path, mutant: Path) -> None:
    """Make `mutant` the same as `original`; files are linked anew, for one of them is replaced."""
    if mutant.exists():
        for path in mutant.iterdir():
            path.unlink()
    mutant.mkdir(exist_ok=True)
    for path in original.iterdir():
        (mutant / path.name).write_bytes(path.read_bytes())


if __name__ == "__main__":
    main()
