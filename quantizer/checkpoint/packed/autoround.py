"""AutoRound: one way of quantizing, stored in the layouts of others.

`packing_format` (of the first versions, `backend`) names the layout and perhaps a kernel. Its own layout is GPTQ's with
zero points as they are. Layers may have other bits and groups than the rest; their shapes tell. Source: auto-round's
inference backends and its exports.
"""

from __future__ import annotations

from collections.abc import Iterator

from quantizer.checkpoint.config import Config
from quantizer.checkpoint.packed import gptq, scaled
from quantizer.checkpoint.packed.parts import Parts, unsupported
from quantizer.convert.source_model import FileTensor

# the word after auto_round -> GPTQ's format; AWQ has one
_GPTQ = {
    "": "gptq_v2",
    "exllamav2": "gptq_v2",
    "gptqmodel": "gptq_v2",
    "tritonv2": "gptq_v2",
    "auto_gptq": "gptq",
    "gptq": "gptq",
    "tritonv2_zp": "gptq",
}
_AWQ = ("auto_awq", "awq")
_FLOATS = ("fp8", "fp8_static", "llm_compressor")


def unpack(config: Config, parts: Parts) -> Iterator[FileTensor]:
    """Yield every packed weight.

    Raises CheckpointError naming a layout that is not supported or the part that does not fit.
    """
    layout = config.text("packing_format") or config.text("backend") or "auto_round"
    if config.values.get("rotation_config"):
        raise unsupported("rotation of AutoRound")
    name = layout.removeprefix("auto_round").removeprefix(":").partition(":")[0]
    if name in _GPTQ:
        yield from gptq.unpack_gptq(Config({**config.values, "checkpoint_format": _GPTQ[name]}), parts)
    elif name in _AWQ:
        yield from gptq.unpack_awq(Config({**config.values, "version": "gemm"}), parts)
    elif name in _FLOATS:
        yield from scaled.unpack_small_floats(parts)
    else:
        raise unsupported(f"AutoRound layout {layout[:64]!r}")
