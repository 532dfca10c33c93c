"""Whether an answer depends on how it was computed: random workloads with every feature, against answers made alone.

Run: `uv run python tests/bench/engine/equal_workloads.py MODEL.gguf... [--first 0] [--count 200]
[--head HEAD.gguf]`. The engine batches, chunks,
reuses prefixes, drafts, evicts, stops answers in mid-batch and restarts from its store; greedy answers must equal
those of alone.py, or differ first where the two likeliest tokens are within 0.05. Exits with 1 otherwise.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from rich.table import Table

from app.engine.llama import LlamaModel, LoadedHead
from app.engine.load.head_file import read_head
from app.engine.load.prediction_layers import mtp_layer_bytes
from app.engine.messages import Finished
from app.engine.request import FinishReason
from app.engine.tuning.tune_results import RuntimeSettings
from offload.placement.load_parameters import ON_HOST
from quantizer.gguf.hyperparameters import hyperparameter
from quantizer.gguf.validation import validate_gguf
from tests.bench.alone import Alone, Match, ReferenceAnswer, compare
from tests.bench.playing import PlayedAnswer, Player
from tests.bench.random_workload import random_workload
from tests.bench.report import show

__all__ = ["Findings", "run"]

N_CTX = 512
_OTHER_BATCHES = (N_CTX, 64, 16, 7, 5, 3, 2, 1)


@dataclass(slots=True)
class Findings:
    """The matches of the answers of a model; `beyond` describes each that differs beyond the margin."""

    matches: Counter[Match] = field(default_factory=Counter)
    totals: Counter[str] = field(default_factory=Counter)
    beyond: list[str] = field(default_factory=list)

    def add(self, name: str, played: PlayedAnswer, alone: Alone) -> None:
        """Compare `played` with the reference, and describe a difference beyond the margin."""
        made = alone.answer(played.prompt, played.arrival.n_tokens, ignore_eos=played.arrival.ignore_eos)
        match, n_same = compare(played.tokens, made)
        if fault := _fault(played, made, alone) if match is Match.EQUAL else "":
            match = Match.BEYOND
            self.beyond.append(f"{name}: {fault}")
        elif match is Match.BEYOND:
            self.beyond.append(f"{name}: {_difference(played, made, n_same, alone)}")
        self.matches[match] += 1
        self._count(played)

    def _count(self, played: PlayedAnswer) -> None:
        self.totals["answers"] += 1
        if isinstance(played.end, Finished):
            usage = played.end.usage
            self.totals["stopped"] += played.end.reason is FinishReason.ABORTED
            self.totals["prompt"] += usage.n_prompt_tokens
            self.totals["cached"] += usage.n_cached_tokens
            self.totals["output"] += usage.n_output_tokens
            self.totals["drafted"] += usage.n_drafted_tokens
            self.totals["accepted"] += usage.n_accepted_tokens


def _fault(played: PlayedAnswer, made: ReferenceAnswer, alone: Alone) -> str:
    """Return what is wrong with an answer whose tokens are equal as far as they go, empty if nothing is."""
    if not isinstance(played.end, Finished):
        return f"it failed: {played.end}"
    text = alone.text(played.tokens)
    if played.end.reason is FinishReason.ABORTED:
        return "" if text.startswith(played.text) else f"its text is {played.text!r} and not {text!r}"
    if len(played.tokens) != len(made.tokens):
        return f"it has {len(played.tokens)} tokens of {len(made.tokens)}"
    return "" if text == played.text else f"its text is {played.text!r} and not {text!r}"


def _difference(played: PlayedAnswer, made: ReferenceAnswer, n_same: int, alone: Alone) -> str:
    """Return where two answers differ, and how far batches of other shapes move the difference."""
    if n_same == len(made.tokens):
        return f"it continues with {played.tokens[n_same]} after {n_same} tokens, where the reference ends"
    ours, other = played.tokens[n_same], made.tokens[n_same]
    leads = [alone.lead(ours, other, [*played.prompt, *played.tokens[:n_same]], n_batch) for n_batch in _OTHER_BATCHES]
    shown = f"{ours} leads by {min(leads):.3f} to {max(leads):.3f} in batches of {_OTHER_BATCHES}"
    return f"token {n_same} is {ours} and not {other}, margin {made.margins[n_same]:.3f}; alone {shown}"


def run(path: Path, seeds: range, setting: RuntimeSettings, head_path: Path | None = None, gpu: str = "") -> Findings:
    """Play the workloads of `seeds` on the model at `path`, with a head if one is named, else with its own layers that
    predict, and compare every answer.

    All layers are on `gpu`, empty for the processor.
    """
    header = validate_gguf(path)
    n_layers = hyperparameter(header, "block_count") + 1
    placed = replace(ON_HOST, devices=(gpu,), n_gpu_layers=n_layers, tensor_split=(n_layers,)) if gpu else ON_HOST
    has_layers = head_path is None and mtp_layer_bytes(header) is not None
    model = LlamaModel(path, placed, setting.extra_buffers, lambda _fraction: True, with_mtp=has_layers)
    head = None
    if head_path is not None:
        spec = read_head(validate_gguf(head_path), header)
        weights = LlamaModel(head_path, ON_HOST, setting.extra_buffers, lambda _fraction: True)
        head = LoadedHead(weights, spec, head_path.stem)
    alone = Alone(model, N_CTX, setting)
    findings = Findings()
    for seed in seeds:
        workload = random_workload(seed, N_CTX, lambda text: _shortened(alone.tokenize(text), text))
        findings.totals["restarts"] += sum(arrival.restarts for arrival in workload.arrivals)
        with tempfile.TemporaryDirectory() as folder:
            player = Player(model, setting, workload, N_CTX, Path(folder), head=head)
            for index, played in enumerate(player.play()):
                findings.add(f"workload {seed}, answer {index}", played, alone)
    alone.close()
    if head is not None:
        head.model.close()
    model.close()
    return findings


def _shortened(tokens: Sequence[int], text: str) -> Sequence[int]:
    """Return every fourth token of a tiny model with a byte for each, whose context the texts would not fit."""
    return tokens[::4] if len(tokens) > 0.8 * len(text) else tokens


def table(found: dict[str, Findings], n_workloads: int) -> Table:
    """Return one row a model."""
    counts = ("answers", "stopped", "restarts", "prompt", "cached", "output", "drafted", "accepted")
    made = Table(box=None, pad_edge=False)
    made.add_column("model", no_wrap=True)
    for name in ("workloads", *counts, *(match.value for match in Match)):
        made.add_column(name, justify="right")
    for model, findings in found.items():
        figures = [findings.totals[name] for name in counts] + [findings.matches[match] for match in Match]
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
    parser.add_argument("--head", type=Path, help="a draft head that belongs to the models")
    parser.add_argument("--gpu", default="", help="has all layers, such as CUDA0 (none: the processor)")
    options = parser.parse_args()
    setting = RuntimeSettings(options.threads, options.flash, options.repack)
    seeds = range(options.first, options.first + options.count)
    found = {path.stem: run(path, seeds, setting, options.head, options.gpu) for path in options.models}
    show(table(found, options.count))
    for model, findings in found.items():
        for line in findings.beyond:
            print(f"{model}, {line}")
    sys.exit(any(findings.beyond for findings in found.values()))


if __name__ == "__main__":
    main()
