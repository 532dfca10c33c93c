"""The guide's tokenizer: byte-level BPE, trained on samples of the corpus.

Owns the special tokens, the chat template and the tokenizer's files. Run as a script it trains and writes them.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from assets.guide.copying import passage
from assets.guide.infill import infill
from assets.guide.prose import random_words
from assets.guide.topics import read_beyond, read_topics

FOLDER = Path(__file__).parent
N_TOKENS = 4096
SYSTEM_TEXT = "You are the localllm guide."
SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|fim_prefix|>",
    "<|fim_middle|>",
    "<|fim_suffix|>",
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
)
# The pre-tokenizer that llama.cpp calls "qwen2": single digits, one leading space per word.
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CHAT_TEMPLATE = (
    "{%- if not messages or messages[0]['role'] != 'system' -%}"
    "{{- '<|im_start|>system\\n" + SYSTEM_TEXT + "<|im_end|>\\n' -}}"
    "{%- endif -%}"
    "{%- for message in messages -%}"
    "{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
)


def load_tokenizer(folder: Path = FOLDER) -> Tokenizer:
    """Return the tokenizer as it was trained."""
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def train_tokenizer(seed: int) -> Tokenizer:
    """Return a tokenizer of N_TOKENS trained on a sample of everything the guide reads and writes."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    specials = [AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS]
    trainer = trainers.BpeTrainer(
        vocab_size=N_TOKENS,
        special_tokens=specials,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(random.Random(seed)), trainer)
    return tokenizer


def write(tokenizer: Tokenizer, folder: Path) -> None:
    """Write tokenizer.json and tokenizer_config.json as transformers keeps them."""
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "unk_token": None,
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 2048,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def _texts(rng: random.Random) -> Iterator[str]:
    beyond = read_beyond()
    for topic in read_topics().values():
        yield topic.answer
        for _ in range(30):
            yield topic.ask(rng)
    for _ in range(2000):
        yield beyond.ask(rng)
        yield passage(rng, 40)
    for _ in range(400):
        yield random_words(rng, 10)
        sample = infill(rng)
        yield sample.prefix + sample.middle + sample.suffix


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=FOLDER)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    write(train_tokenizer(arguments.seed), arguments.out)


if __name__ == "__main__":
    main()
