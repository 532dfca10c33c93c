"""Do `quantize --size` and `--kld` meet their targets, and does the mix beat the plain type of the same size?

For each model (a GGUF in F16): mixes of the size of plain types, mixes for divergences in between, all judged against
the model on the text that ships for judging. Plain types get the same importance matrix. Exits with 1 where a size is
missed by 2 %, a divergence by 10 %, or a plain type is better.

    python tests/bench/conversion/mix_targets.py MODEL.gguf...
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quantizer.system.process import python_command

PLAIN = ("Q3_K_M", "Q4_K_M", "Q5_K_M")
SIZE_TOLERANCE, KLD_TOLERANCE = 0.02, 0.1


@dataclass(frozen=True, slots=True)
class Row:
    """One mix: what was asked, what came, and how the plain type of its size does."""

    model: str
    asked: str
    came: str
    off: float
    beats: str
    is_good: bool


def main() -> int:
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        for path in map(Path, sys.argv[1:]):
            for row in examine(path, Path(folder)):
                print(f"{row.model:24} {row.asked:>18} {row.came:>18} {row.off:+8.2%}  {row.beats}", flush=True)
                rows.append(row)
    return 0 if rows and all(row.is_good for row in rows) else 1


def examine(model: Path, folder: Path) -> Iterator[Row]:
    """Yield the rows of one model; targets of divergence lie between those of mixes of plain types' sizes."""
    klds = []
    for name in PLAIN:
        plain = localllm("quantize", model, name, "--imatrix", "auto", "-o", folder / "plain.gguf", "--overwrite")
        mix = localllm("quantize", model, "--size", plain["bytes"], "-o", folder / "mix.gguf", "--overwrite")
        of_plain, of_mix = (divergence(folder / file, model) for file in ("plain.gguf", "mix.gguf"))
        klds.append(of_mix)
        off = mix["bytes"] / plain["bytes"] - 1
        beats = f"KLD {of_mix:.3g}; {name}: {of_plain:.3g}"
        is_good = -SIZE_TOLERANCE <= off <= 0 and of_mix < of_plain
        yield Row(model.name, f"{plain['bytes']:,} bytes", f"{mix['bytes']:,} bytes", off, beats, is_good)
    for target in ((klds[0] * klds[1]) ** 0.5, (klds[1] * klds[2]) ** 0.5):
        mix = localllm("quantize", model, "--kld", f"{target:.3g}", "-o", folder / "mix.gguf", "--overwrite")
        kld = divergence(folder / "mix.gguf", model)
        off = kld / target - 1
        yield Row(
            model.name, f"KLD {target:.3g}", f"{kld:.3g}", off, f"{mix['bytes']:,} bytes", -KLD_TOLERANCE <= off <= 0.01
        )


def divergence(model: Path, reference: Path) -> float:
    """Return the mean divergence that `localllm eval` finds."""
    verdict = localllm("eval", model, "--against", reference)
    return float(verdict["statistics"]["comparison"]["mean_kld"]["value"])


def localllm(*arguments: object) -> dict[str, Any]:
    command = python_command("app.cli.main", *map(str, arguments), "--json")
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


if __name__ == "__main__":
    sys.exit(main())
