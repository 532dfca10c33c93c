"""Does an answer depend on how it was computed? Random workloads with everything on, against each answer made alone.

Run: `uv run python tests/bench/equal_workloads.py MODEL.gguf... [--first 0] [--count 200]`. The engine batches, chunks,
reuses prefixes, drafts, evicts, stops answers in mid-batch and restarts from its store; greedy answers must be those of
alone.py, or part from them first where the two likeliest tokens are within 0.05. Exits with 1 where one does not.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from rich.table import Table

from app.engine.llama import LlamaModel
from app.engine.protocol.messages import Finished
from app.engine.request import FinishReason
from app.engine.tuning.tune_results import RuntimeSettings
from offload.placement.load_parameters import ON_HOST
from quantizer.gguf.validation import validate_gguf
from tests.bench.alone import Alone, AloneAnswer, Verdict, compare
from tests.bench.playing import Player, Said
from tests.bench.random_workload import random_workload
from tests.bench.report import show

__all__ = ["Findings", "examine"]

N_CTX = 512
_OTHER_BATCHES = (N_CTX, 64, 16, 7, 5, 3, 2, 1)


@dataclass(slots=True)
class Findings:
    """What became of a model's answers. `beyond` tells of each that parts from the one made alone where it must not."""

    verdicts: Counter[Verdict] = field(default_factory=Counter)
    totals: Counter[str] = field(default_factory=Counter)
    beyond: list[str] = field(default_factory=list)

    def add(self, name: str, said: Said, alone: Alone) -> None:
        """Compare `said` with what is said alone, and look closer at one that differs beyond the margin."""
        made = alone.answer(said.prompt, said.arrival.n_tokens, ignore_eos=said.arrival.ignore_eos)
        verdict, n_same = compare(said.tokens, made)
        if fault := _fault(said, made, alone) if verdict is Verdict.EQUAL else "":
            verdict = Verdict.BEYOND
            self.beyond.append(f"{name}: {fault}")
        elif verdict is Verdict.BEYOND:
            self.beyond.append(f"{name}: {_difference(said, made, n_same, alone)}")
        self.verdicts[verdict] += 1
        self._count(said)

    def _count(self, said: Said) -> None:
        self.totals["answers"] += 1
        if isinstance(said.end, Finished):
            usage = said.end.usage
            self.totals["stopped"] += said.end.reason is FinishReason.ABORTED
            self.totals["prompt"] += usage.n_prompt_tokens
            self.totals["cached"] += usage.n_cached_tokens
            self.totals["output"] += usage.n_output_tokens
            self.totals["drafted"] += usage.n_drafted_tokens
            self.totals["accepted"] += usage.n_accepted_tokens


def _fault(said: Said, made: AloneAnswer, alone: Alone) -> str:
    """Return what is wrong with an answer whose tokens are right as far as they go, empty when nothing is."""
    if not isinstance(said.end, Finished):
        return f"it failed: {said.end}"
    text = alone.text(said.tokens)
    if said.end.reason is FinishReason.ABORTED:
        return "" if text.startswith(said.text) else f"it said {said.text!r} for {text!r}"
    if len(said.tokens) != len(made.tokens):
        return f"it has {len(said.tokens)} tokens of {len(made.tokens)}"
    return "" if text == said.text else f"it said {said.text!r} for {text!r}"


def _difference(said: Said, made: AloneAnswer, n_same: int, alone: Alone) -> str:
    """Return where two answers part, and how far batches of another shape alone move what decides between them."""
    if n_same == len(made.tokens):
        return f"it goes on with {said.tokens[n_same]} after {n_same} tokens, where alone it ends"
    ours, other = said.tokens[n_same], made.tokens[n_same]
    leads = [alone.lead(ours, other, [*said.prompt, *said.tokens[:n_same]], n_batch) for n_batch in _OTHER_BATCHES]
    shown = f"{ours} leads by {min(leads):.3f} to {max(leads):.3f} in batches of {_OTHER_BATCHES}"
    return f"token {n_same} is {ours} and not {other}, margin {made.margins[n_same]:.3f}; alone {shown}"


def examine(path: Path, seeds: range, setting: RuntimeSettings) -> Findings:
    """Play the workloads of `seeds` on the model at `path` and compare every answer."""
    validate_gguf(path)
    model = LlamaModel(path, ON_HOST, setting.extra_buffers, lambda _fraction: True)
    alone = Alone(model, N_CTX, setting)
    findings = Findings()
    for seed in seeds:
        workload = random_workload(seed, N_CTX, alone.tokenize)
        findings.totals["restarts"] += sum(arrival.restarts for arrival in workload.arrivals)
        with tempfile.TemporaryDirectory() as folder:
            for index, said in enumerate(Player(model, setting, workload, N_CTX, Path(folder)).play()):
                findings.add(f"workload {seed}, answer {index}", said, alone)
    alone.close()
    model.close()
    return findings


def table(found: dict[str, Findings], n_workloads: int) -> Table:
    """Return one row a model."""
    counts = ("answers", "stopped", "restarts", "prompt", "cached", "output", "drafted", "accepted")
    made = Table(box=None, pad_edge=False)
    made.add_column("model", no_wrap=True)
    for name in ("workloads", *counts, *(verdict.value for verdict in Verdict)):
        made.add_column(name, justify="right")
    for model, findings in found.items():
        figures = [findings.totals[name] for name in counts] + [findings.verdicts[verdict] for verdict in Verdict]
        made.add_row(model, str(n_workloads), *(str(figure) for figure in figures))
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path, nargs="+")
    parser.add_argument("--first", type=int, default=0, help="the seed of the first workload (0)")
    parser.add_argument("--count", type=int, default=200, help="how many workloads (200)")
    parser.add_argument("--threads", type=int, default=1, help="of the model (1)")
    parser.add_argument("--flash", action="store_true", help="use fused attention")
    parser.add_argument("--repack", action="store_true", help="use llama.cpp's extra buffer types")
    options = parser.parse_args()
    setting = RuntimeSettings(options.threads, options.flash, options.repack)
    seeds = range(options.first, options.first + options.count)
    found = {path.stem: examine(path, seeds, setting) for path in options.models}
    show(table(found, options.count))
    for model, findings in found.items():
        for line in findings.beyond:
            print(f"{model}, {line}")
    sys.exit(any(findings.beyond for findings in found.values()))


if __name__ == "__main__":
    main()
