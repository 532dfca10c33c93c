"""Turn each flag of each class over: does such a checkpoint convert as transformers computes it, or is it refused?

    uv run --group train python -m tests.bench.conversion.flag_sweep FOLDER [--flags attention_bias,…]

Prints a line for each of about 200 random checkpoints, most of them in one or two seconds; exits with 1 where one
converts to something else. Flags of a config that its class ignores are among them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path

import transformers

from app.engine.load.load_check import LOAD_CHECK
from quantizer.system.errors import UserError
from quantizer.write.job import JobRequest, run_job
from tests.bench.conversion.class_table import apart
from tests.bench.conversion.compare_logits import compared_logits
from tests.bench.models import tiny_checkpoints

_FLAGS = (
    *("attention_bias", "mlp_bias", "use_bias", "qkv_bias", "attention_out_bias", "use_qkv_bias", "bias"),
    *("tie_word_embeddings", "norm_topk_prob", "use_qk_norm", "qk_layernorm", "use_parallel_residual", "parallel_attn"),
    *("rope_interleave", "mamba_rms_norm", "use_expert_bias", "add_swa_attention_sink_bias", "use_conv_bias"),
    *("scale_attn_by_inverse_layer_idx", "use_bidirectional_attention", "route_norm", "mup_enabled"),
)


def cases(flags: list[str]) -> Iterator[tuple[str, str, bool]]:
    """Yield the name of the first checkpoint of each class of text models, a flag and its other value."""
    seen = set()
    for name, (config, changes) in tiny_checkpoints.CHECKPOINTS.items():
        if name in tiny_checkpoints.SEEING or config in seen:
            continue
        seen.add(config)
        settings = getattr(transformers, config)(**deepcopy(tiny_checkpoints._PLAIN | changes))
        yield from (
            (name, flag, not value) for flag in flags if isinstance(value := getattr(settings, flag, None), bool)
        )


def verdict(folder: Path, name: str, flag: str, value: bool) -> str:
    """What becomes of a checkpoint: how far off it is, or why it is refused."""
    config, changes = tiny_checkpoints.CHECKPOINTS[name]
    own = f"{name}-{flag}"
    tiny_checkpoints.CHECKPOINTS[own] = (config, changes | {flag: value})
    checkpoint, output = folder / own, folder / f"{own}.gguf"
    try:
        tiny_checkpoints.write(own, checkpoint)
        list(run_job(JobRequest(str(checkpoint), "F32", str(output), 1, is_overwriting=True, load_check=LOAD_CHECK)))
    except UserError as error:
        return f"refused: {error.cause}"
    compared = compared_logits(checkpoint, output)
    return f"{'equal' if compared.is_equal else 'WRONG'}: {compared.difference:.1e}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--flags", default=",".join(_FLAGS))
    arguments = parser.parse_args()
    arguments.folder.mkdir(exist_ok=True)
    is_wrong = False
    for name, flag, value in cases(arguments.flags.split(",")):
        try:
            found = apart(verdict, arguments.folder.resolve(), name, flag, value)
        except Exception as error:  # transformers knows no such model
            found = f"no model: {type(error).__name__}"
        is_wrong |= found.startswith("WRONG")
        print(f"{name}: {flag} = {value}: {found}", flush=True)
    return int(is_wrong)


if __name__ == "__main__":
    sys.exit(main())
