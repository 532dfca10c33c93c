"""Trains the guide from scratch and writes its checkpoint.

    uv run --group train python -m torch.distributed.run --nproc-per-node 2 -m assets.guide.train --tokens 8e6

One process a core, one thread each (OMP_NUM_THREADS=1), is faster on a CPU than one process with many threads.
Needs the tokenizer that vocabulary.py makes. Every row is drawn from --seed; --tokens fixes the schedule, so such
a run can be repeated; --minutes fits it into a time instead. --state lets a run that was stopped go on. --from
teaches a trained guide a changed corpus: its weights, the end of the curriculum, a tenth of the learning rates.
"""

from __future__ import annotations

import argparse
import os
import random
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn import functional

from assets.guide.checkpoint import load_checkpoint, save_checkpoint
from assets.guide.circuit import wire_copying
from assets.guide.model import Llama, Shape
from assets.guide.muon import Muon
from assets.guide.samples import IGNORED, Row, Sampler
from assets.guide.vocabulary import FOLDER, load_tokenizer

LENGTHS = (256, 512, 1536)
N_WARMUP_STEPS = 20
N_OPENING, OPENING_WEIGHT = 4, 2.0
COPYING_SCORES = tuple(f"layers.{layer}.self_attn.{which}_proj.weight" for layer in range(2) for which in "qk")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How long to train and how: n_tokens ends the run, or minutes where n_tokens is 0."""

    n_tokens: float
    minutes: float
    seed: int
    holds_scores: bool = False  # what the first two layers attend to stays as it is; see soften.py
    is_fine_tuning: bool = False  # from trained weights: the end of the curriculum, a tenth of the rates
    n_batch_tokens: int = 4096
    matrix_rate: float = 0.015
    embedding_rate: float = 0.01
    norm_rate: float = 0.002

    def progress(self, n_seen: int, elapsed_s: float) -> float:
        return n_seen / self.n_tokens if self.n_tokens else elapsed_s / (60 * self.minutes)

    def rate_share(self, step: int, progress: float) -> float:
        """Return the share of the full learning rate: warm up, hold, then fall to zero."""
        share = min(1.0, (step + 1) / N_WARMUP_STEPS, max(0.0, 1.0 - progress) / 0.5)
        return share / 10 if self.is_fine_tuning else share

    def length(self, step: int, progress: float) -> int:
        """Return the row length of a step: short at first, long ones mixed in later."""
        return LENGTHS[0] if progress < 0.3 else random.Random(f"{self.seed}/{step}").choices(LENGTHS, (3, 3, 1))[0]


class Trainer:
    """Owns the weights, their optimizers and the count of what was seen; one of `n_ranks` equal processes."""

    def __init__(self, plan: Plan, device: str) -> None:
        torch.manual_seed(plan.seed)
        tokenizer = load_tokenizer()
        self.plan, self.device = plan, device
        self.rank, self.n_ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
        self.model = Llama(Shape(n_vocab=tokenizer.get_vocab_size())).to(device)
        wire_copying(self.model)
        self.hidden = torch.compile(self.model, dynamic=False)
        named = list(self.model.named_parameters())
        self.muon = Muon([weight for name, weight in named if weight.ndim == 2 and "embed" not in name])
        norms = [weight for _, weight in named if weight.ndim == 1]
        groups = [
            {"params": [self.model.embed_tokens.weight], "full_rate": plan.embedding_rate},
            {"params": norms, "full_rate": plan.norm_rate},
        ]
        self.adam = torch.optim.AdamW(groups, betas=(0.9, 0.95), weight_decay=0.0)
        self.held = [weight for name, weight in named if plan.holds_scores and name.endswith(COPYING_SCORES)]
        self.sampler = Sampler(tokenizer)
        self.step, self.n_seen, self.elapsed_s = 0, 0, 0.0

    def run(self, state_file: Path | None) -> None:
        """Train to the end of the plan, with a line of progress and a saved state every so often."""
        started_s, losses = time.monotonic() - self.elapsed_s, [0.0]
        while (progress := self.plan.progress(self.n_seen, self.elapsed_s)) < 1.0:
            losses.append(self.train_step(progress))
            self.elapsed_s = self._agreed(time.monotonic() - started_s)
            if self.step % 20 == 0 and self.rank == 0:
                mean = sum(losses[-20:]) / 20
                print(
                    f"{progress:6.1%} step {self.step} {self.n_seen / 1e6:.2f}M loss {mean:.3f} {self.elapsed_s:.0f} s",
                    flush=True,
                )
            if state_file and self.step % 50 == 0 and self.rank == 0:
                self.save_state(state_file)

    def train_step(self, progress: float) -> float:
        """Learn one batch and return its loss."""
        stage = 1.0 if self.plan.is_fine_tuning else progress
        length = self.plan.length(self.step, stage)
        n_rows = max(1, self.plan.n_batch_tokens // length // self.n_ranks)
        rng = random.Random(f"{self.plan.seed}/{self.step}/{self.rank}")
        loss = self._loss(self.sampler.batch(n_rows, length, stage, rng))
        loss.backward()
        self._share_gradients()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        share = self.plan.rate_share(self.step, progress)
        held = [weight.detach().clone() for weight in self.held]
        self.muon.step(self.plan.matrix_rate * share)
        for group in self.adam.param_groups:
            group["lr"] = group["full_rate"] * share
        self.adam.step()
        for weight, before in zip(self.held, held, strict=True):
            weight.detach().copy_(before)
        self.model.zero_grad(set_to_none=True)
        self.step += 1
        self.n_seen += n_rows * length * self.n_ranks
        return float(loss.item())

    def save_state(self, path: Path) -> None:
        state = {"model": self.model.state_dict(), "adam": self.adam.state_dict(), "muon": self.muon.state()}
        torch.save(state | {"counts": (self.step, self.n_seen, self.elapsed_s)}, path)

    def load_weights(self, folder: Path) -> None:
        """Start from the weights of the checkpoint in `folder`."""
        self.model.load_state_dict(load_checkpoint(folder).state_dict())

    def load_state(self, path: Path) -> None:
        """Go on from what save_state wrote."""
        state = torch.load(path, map_location=self.device, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.adam.load_state_dict(state["adam"])
        self.muon.load(state["muon"])
        self.step, self.n_seen, self.elapsed_s = state["counts"]

    def _loss(self, rows: list[Row]) -> torch.Tensor:
        inputs, targets = (torch.tensor(part, device=self.device) for part in zip(*rows, strict=True))
        is_learned = targets != IGNORED
        with torch.autocast(self.device, torch.bfloat16, enabled=self.device == "cuda"):
            scores = self.model.logits(self.hidden(inputs)[is_learned])
        losses = functional.cross_entropy(scores.float(), targets[is_learned], reduction="none")
        weights = 1.0 + OPENING_WEIGHT * _openings(is_learned)[is_learned]
        return (losses * weights).sum() / weights.sum()

    def _share_gradients(self) -> None:
        """Average gradients over the ranks, in one message."""
        if self.n_ranks == 1:
            return
        gradients = [weight.grad for weight in self.model.parameters() if weight.grad is not None]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(flat)
        for gradient, part in zip(gradients, flat.split([gradient.numel() for gradient in gradients]), strict=True):
            gradient.copy_(part.view_as(gradient) / self.n_ranks)

    def _agreed(self, elapsed_s: float) -> float:
        """Return the first rank's clock, so that all ranks follow one schedule."""
        if self.n_ranks == 1:
            return elapsed_s
        clock = torch.tensor([elapsed_s], dtype=torch.float64)
        dist.broadcast(clock, 0)
        return float(clock.item())


def _openings(is_learned: torch.Tensor) -> torch.Tensor:
    """Mark the first tokens of each learned span [batch, length]: they decide which answer it becomes."""
    earlier = functional.pad(is_learned, (N_OPENING, 0))[:, :-N_OPENING]
    return (is_learned & ~earlier).float()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=float, default=0.0, help="tokens to see; 0: train for --minutes")
    parser.add_argument("--minutes", type=float, default=45.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--hold-scores", action="store_true", help="keep what the copying heads attend to")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--state", type=Path, help="file to save the state of training in, and to go on from")
    parser.add_argument("--from", dest="start", type=Path, help="checkpoint to teach a changed corpus")
    parser.add_argument("--out", type=Path, default=FOLDER)
    arguments = parser.parse_args()
    if "WORLD_SIZE" in os.environ:
        dist.init_process_group("gloo")
    plan = Plan(
        n_tokens=arguments.tokens,
        minutes=arguments.minutes,
        seed=arguments.seed,
        holds_scores=arguments.hold_scores,
        is_fine_tuning=arguments.start is not None,
    )
    trainer = Trainer(plan, arguments.device)
    if arguments.start:
        trainer.load_weights(arguments.start)
    if arguments.state and arguments.state.exists():
        trainer.load_state(arguments.state)
    trainer.run(arguments.state)
    if trainer.rank == 0:
        save_checkpoint(trainer.model, arguments.out)


if __name__ == "__main__":
    main()
