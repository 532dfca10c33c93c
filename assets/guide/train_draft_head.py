"""Trains an EAGLE-3 draft head for the guide on its own hidden states, and writes it as a checkpoint.

    OMP_NUM_THREADS=1 uv run --group train python -m assets.guide.train_draft_head HEAD --minutes 30

It learns what the guide says next, for several tokens in a row: each step of a draft starts from the states of the step
before, as in use. Conversations are those of `conversation.py`, with all answers to their end.
"""

from __future__ import annotations

import argparse
import random
import time
from collections import Counter
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional

from assets.guide.checkpoint import load_checkpoint
from assets.guide.conversation import Dialogue, converse
from assets.guide.draft_head import Eagle3, guide_features, save_head
from assets.guide.muon import Muon
from assets.guide.vocabulary import FOLDER, load_tokenizer

N_STEPS, STEP_DECAY = 3, 0.8
LENGTH, N_ROWS = 384, 4
N_WARMUP_STEPS = 10
MATRIX_RATE, OUTPUT_RATE, NORM_RATE = 0.01, 0.002, 0.002
N_WORDS = 80
KIND_WEIGHTS = (80, 12, 5, 0, 3)  # what can be looked up in the prompt is better drafted from there
N_COUNTED_ROWS, N_CHECKED_BATCHES = 400, 8


class Rows:
    """Draws conversations as rows of token ids, with marks of what the guide says."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def batch(self, rng: random.Random, n_rows: int = N_ROWS) -> tuple[Tensor, Tensor]:
        """Return ids and marks, each [n_rows, LENGTH]."""
        ids, marks = zip(*(self._row(rng) for _ in range(n_rows)), strict=True)
        return torch.tensor(ids), torch.tensor(marks)

    def _row(self, rng: random.Random) -> tuple[list[int], list[bool]]:
        ids: list[int] = []
        marks: list[bool] = []
        for text, is_said in converse(Dialogue(rng, N_WORDS, share_cut=0.0, kind_weights=KIND_WEIGHTS)):
            piece = self._tokenizer.encode(text).ids
            ids += piece
            marks += [is_said] * len(piece)
            if len(ids) >= LENGTH:
                return ids[:LENGTH], marks[:LENGTH]
        raise AssertionError("conversations do not end")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, metavar="HEAD", help="folder for the head's checkpoint")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--draft-tokens", type=int, default=1024, help="size of the vocabulary that is drafted")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    torch.manual_seed(arguments.seed)
    rows, guide = Rows(load_tokenizer()), load_checkpoint(FOLDER).requires_grad_(requires_grad=False)
    head = Eagle3(guide.shape, _most_frequent(rows, arguments.draft_tokens))
    head.start_from(guide)
    train(head, guide, rows, arguments.minutes, arguments.seed)
    save_head(head, arguments.out)
    rates = ", ".join(f"{rate:.1%}" for rate in accepted(head, guide, rows))
    print(f"agrees with the guide at steps 1 to {N_STEPS}, each after agreement before: {rates}")


def train(head: Eagle3, guide: torch.nn.Module, rows: Rows, minutes: float, seed: int) -> None:
    """Learn for a time; the rates warm up, hold, and fall over the second half."""
    named = dict(head.named_parameters())
    matrices = [weight for name, weight in named.items() if weight.ndim == 2 and name != "lm_head.weight"]
    muon = Muon(matrices)
    norms = [weight for weight in named.values() if weight.ndim == 1]
    groups = [{"params": [head.lm_head.weight], "full": OUTPUT_RATE}, {"params": norms, "full": NORM_RATE}]
    adam = torch.optim.AdamW(groups, betas=(0.9, 0.95), weight_decay=0.0)
    started_s, step = time.monotonic(), 0
    while (progress := (time.monotonic() - started_s) / (60 * minutes)) < 1.0:
        share = min(1.0, (step + 1) / N_WARMUP_STEPS, 2 * (1.0 - progress))
        ids, is_said = rows.batch(random.Random(f"{seed}/{step}"))
        losses = step_losses(head, guide, ids, is_said)
        sum(loss * STEP_DECAY**index for index, loss in enumerate(losses)).backward()
        torch.nn.utils.clip_grad_norm_(head.parameters(), 1.0)
        muon.step(MATRIX_RATE * share)
        for group in adam.param_groups:
            group["lr"] = group["full"] * share
        adam.step()
        head.zero_grad(set_to_none=True)
        step += 1
        if step % 20 == 1:
            words = " ".join(f"{loss.item():.3f}" for loss in losses)
            print(f"{progress:6.1%} step {step} {step * ids.numel() / 1e6:.2f}M losses {words}", flush=True)


def step_losses(head: Eagle3, guide: torch.nn.Module, ids: Tensor, is_said: Tensor) -> list[Tensor]:
    """Return the cross-entropy of each step's draft with the guide's probabilities, over what it says."""
    following, features, final = _seen(guide, ids)
    losses = []
    for step, states in enumerate(head.unroll(following, features, N_STEPS)):
        is_learned = is_said[:, 2:].clone()
        is_learned[:, :step] = False
        with torch.no_grad():
            wanted = guide.logits(final[:, 1:-1][is_learned]).softmax(-1)[:, head.drafted]
        scores = head.logits(states[:, :-1][is_learned])
        losses.append(-(wanted * functional.log_softmax(scores, dim=-1)).sum(-1).mean())
    return losses


@torch.no_grad()
def accepted(head: Eagle3, guide: torch.nn.Module, rows: Rows) -> list[float]:
    """Return how often each step drafts the guide's likeliest token, where all before did, in fresh conversations."""
    right, drafted = [0] * N_STEPS, [0] * N_STEPS
    for index in range(N_CHECKED_BATCHES):
        ids, is_said = rows.batch(random.Random(f"check/{index}"))
        following, features, final = _seen(guide, ids)
        likeliest = guide.logits(final[:, 1:-1]).argmax(-1)
        is_alive = is_on_text = is_said[:, 2:] & (likeliest == ids[:, 2:])
        is_right = is_alive
        for step, states in enumerate(head.unroll(following, features, N_STEPS)):
            if step:  # the step before, one position earlier, must have been right
                is_alive = is_on_text & functional.pad(is_right, (1, 0))[:, :-1]
            is_right = is_alive & (head.drafted[head.logits(states[:, :-1]).argmax(-1)] == likeliest)
            drafted[step] += int(is_alive.sum())
            right[step] += int(is_right.sum())
    return [n_right / max(1, n_drafted) for n_right, n_drafted in zip(right, drafted, strict=True)]


def _seen(guide: torch.nn.Module, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    with torch.no_grad():
        features, final = guide_features(guide, ids)
        return guide.embed_tokens(ids[:, 1:]), features[:, :-1], final


def _most_frequent(rows: Rows, n_tokens: int) -> Tensor:
    """Return the ids that the guide says most often, in order."""
    counts: Counter[int] = Counter()
    for index in range(N_COUNTED_ROWS):
        ids, is_said = rows.batch(random.Random(f"count/{index}"), 1)
        counts.update(ids[is_said].tolist())
    chosen = sorted(token for token, _ in counts.most_common(n_tokens))
    share = sum(counts[token] for token in chosen) / counts.total()
    print(f"{len(chosen)} of {len(counts)} tokens drafted, {share:.1%} of what is said", flush=True)
    return torch.tensor(chosen)


if __name__ == "__main__":
    main()
