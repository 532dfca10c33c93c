"""The time per token: the bytes that each device reads at its rate, plus overheads. Pure.

A processor also unpacks weights and computes attention, in bytes that it could have read meanwhile; a GPU does both
while it reads. Those tables were measured on 2 AVX-512 cores that read 19 GB/s, a thread on each: layers of one type
each with rows of 512 to 8,192 weights, and attention of six shapes at 512, 1,792 and 3,584 tokens.

A prompt is bound by computing, where the type of the weights decides: of files of one size one reads five times as fast
as another. So weights are counted by kind, a type on a path (`type_costs`), and what a processor computes for a prompt
besides them is attention and the steps between matrix products. What is learned of one kind says nothing of another.

A device whose types were measured has a `TypeTable`, which gives the seconds of each kind; the tables of this module
are what to expect of one that was not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeVar

from offload.devices.machine import DeviceKind, Machine
from offload.speed.type_costs import NO_WORK, TypeTable, TypeWork, Weights, bytes_of, type_of
from offload.speed.type_costs import is_repacked as has_repacked_path
from quantizer.gguf.header import Header, TensorInfo
from quantizer.gguf.hyperparameters import layer_values
from quantizer.gguf.layer_caches import LayerCaches
from quantizer.gguf.tensor_types import TENSOR_TYPES, TensorType, tensor_type_named

if TYPE_CHECKING:  # the figures of many placements at once; importing numpy takes longer than this module
    import numpy as np
    from numpy.typing import NDArray

# The share of a published or measured bandwidth that decoding reaches: 0.55 to 0.7 in llama.cpp's published benchmarks
# of a 7B Q4_0 (discussions 4167, 10879 and 15013 of ggml-org/llama.cpp), on processors too; but those unpack meanwhile,
# which counts for itself, and come near to what was measured where nothing is to be unpacked.
_REACHED = {DeviceKind.GPU: 0.65, DeviceKind.INTEGRATED: 0.65, DeviceKind.CPU: 0.95}
_REACHED_OF_PRODUCTS = 0.9  # the share of what matrix products alone were measured to reach: norms and attention beside
# The share of what one product was measured to reach, the best of some passes, that products reach in a model, between
# others that take the caches: 0.87 to 1.06 of 18 files of a Qwen3 shape and of SmolLM2 and Gemma 3 270M.
REACHED_IN_MODELS = 0.94
# Operations of a prompt for each byte a second of bandwidth, from the same benchmarks: 60 to 150 on discrete GPUs,
# about 25 on Apple's, about 15 on processors; those have a limit besides, for many channels may feed few cores.
_OPERATIONS_PER_BYTE = {DeviceKind.GPU: 75.0, DeviceKind.INTEGRATED: 25.0, DeviceKind.CPU: 15.0}
_ASSUMED_BYTES_PER_S = {DeviceKind.CPU: 20e9, DeviceKind.INTEGRATED: 30e9, DeviceKind.GPU: 150e9}
_OPERATIONS_PER_CORE = 170e9  # a second, of Q4_0: measured on AVX-512 with VNNI at 3.7 GHz, faster than most others
_ASSUMED_LINK_BYTES_PER_S = 8e9  # PCIe 3.0 with eight lanes
_CROSSING_S = 30e-6  # a wait for the other device and a small copy
_LAYER_S = 20e-6  # starting the dozen operations of a layer, which small layers wait for
_FIXED_S = 0.5e-3  # sampling, and starting a step
# What the engine does beside a graph that was measured, a thread of 3 GHz: sampling, building the nodes of a layer, and
# the batch, positions and mask of each token of a prompt.
ANSWER_FIXED_S, ANSWER_BUILDING_S, _PROMPT_TOKEN_S = 0.1e-3, 12e-6, 5e-6
_UNCERTAINTY, _MEASURED_UNCERTAINTY = 0.35, 0.2  # of what is expected; where the types of weights were measured
_OPERATIONS_PER_WEIGHT = 2
Seconds = TypeVar("Seconds", float, "NDArray[np.float64]")


@dataclass(frozen=True, slots=True)
class Turn:
    """What a person waits for: `n_prompt` tokens that are read anew, and an answer of `n_answer`."""

    n_prompt: int
    n_answer: int

    def within(self, n_ctx: int) -> Turn:
        """Return the turn in a context of `n_ctx` tokens; 0 is one of unknown length."""
        return replace(self, n_prompt=min(self.n_prompt, n_ctx or self.n_prompt))

    def seconds(self, prompt_token_s: Seconds, answer_token_s: Seconds) -> Seconds:
        """Return what the turn takes, by the seconds of one token of the prompt and one of the answer."""
        return self.n_prompt * prompt_token_s + self.n_answer * answer_token_s


# A file, a page or the result of a tool with a question, and the usual length of answers (that of `tune`, too). What
# earlier turns read is cached. Placements are ranked by it: of prompts alone the largest micro-batch would be the best,
# of answers alone a GPU without room for a layer would be useless.
TYPICAL_TURN = Turn(n_prompt=2048, n_answer=256)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """The time that a machine takes for its work, by device name. `known` are the devices whose figures were published,
    measured or given; a plan for others has no speed. `attention_seconds_per_byte` is the processor's. `tables` are the
    types that were measured. Runs taught `weight_factors` and `operation_factors`: how many times the expected seconds
    the processor takes for each kind, in answers and in prompts. `latency_s` is what a step waits for each device of
    another machine that it uses. `uncertainty` is the share by which a prediction may be off."""

    seconds_per_byte: Mapping[str, float]
    seconds_per_operation: Mapping[str, float]
    link_seconds_per_byte: Mapping[str, float]
    known: frozenset[str]
    attention_seconds_per_byte: float
    tables: Mapping[str, TypeTable] = field(default_factory=dict)
    weight_factors: Mapping[str, float] = field(default_factory=dict)
    operation_factors: Mapping[str, float] = field(default_factory=dict)
    latency_s: Mapping[str, float] = field(default_factory=dict)
    crossing_s: float = _CROSSING_S
    layer_s: float = _LAYER_S
    fixed_s: float = _FIXED_S
    prompt_token_s: float = 0.0
    attention_factor: float = 1.0  # of what was measured of attention
    uncertainty: float = _UNCERTAINTY

    def weights_s(self, device: str, weights: Weights, model_bytes: float | None = None) -> dict[str, float]:
        """Return the expected seconds of `device` for the `weights` of one token of an answer, by kind. They are a part
        of `model_bytes`, by default all of it."""
        table, n_bytes = self.tables.get(device), bytes_of(weights) if model_bytes is None else model_bytes
        found = {}
        for kind, work in weights.items():
            cost = table.cost(kind) if table else None
            if cost is not None:
                found[kind] = cost.answer(n_bytes).of(work) / REACHED_IN_MODELS
            else:
                found[kind] = _expected_bytes(kind, work) * self.seconds_per_byte[device]
        return found

    def operations_s(self, host: str, work: Work, n_ubatch: int) -> dict[str, float]:
        """Return the expected seconds of the processor for one token of a prompt, by kind."""
        table, weights = self.tables.get(host), work.weights.get(host, {})
        found = {}
        for kind, operations in work.host_operations.items():
            cost = table.cost(kind) if table and kind in weights else None
            if cost is not None:
                found[kind] = cost.prompt(n_ubatch).of(weights[kind]) / REACHED_IN_MODELS
            elif table and table.graph and kind in _GRAPH_FIELDS:
                found[kind] = operations * getattr(table.graph, _GRAPH_FIELDS[kind])
            else:
                factor = HOST_FACTORS.get(type_of(kind), _FACTOR_OF_OTHERS)
                found[kind] = operations * factor * self.seconds_per_operation[host]
        return found

    def attention_s(self, host: str, work: Work) -> float:
        """Return the seconds of attention of the processor, called `host`, for a token of an answer."""
        table = self.tables.get(host)
        if table is None or table.graph is None or not work.attention.n_weights:
            return work.attention_bytes * self.attention_seconds_per_byte
        cost = table.graph.fused_attention if work.is_fused else table.graph.attention
        return self.attention_factor * cost.of(work.attention)

    def overhead_s(self, n_layers: int, n_crossings: int = 0) -> float:
        return self.fixed_s + n_layers * self.layer_s + n_crossings * self.crossing_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The work of one token: bytes read and operations (multiplications and additions) of each device, layers of all.
    Of the processor `read_bytes` are weights and what it could read while it unpacks them, `attention_bytes` what it
    could read while it attends, `attention` the elements and scores of that; `host_operations` are those of a prompt
    by kind. `weights` are those of each device by kind; old records have neither. Between devices a token changes
    `n_crossings` times. `prompt_gpu` computes the operations of the processor in a prompt, but for its
    `host_operations`, and fetches `fetched_bytes` for each micro-batch; it is empty where the processor does it."""

    read_bytes: Mapping[str, float]
    operations: Mapping[str, float] = field(default_factory=dict)
    attention_bytes: float = 0.0
    attention: TypeWork = NO_WORK
    host_operations: Mapping[str, float] = field(default_factory=dict)
    weights: Mapping[str, Mapping[str, TypeWork]] = field(default_factory=dict)
    is_fused: bool = False
    n_layers: int = 0
    n_crossings: int = 0
    prompt_gpu: str = ""
    fetched_bytes: float = 0.0


def expected_rates(machine: Machine, tables: Mapping[str, TypeTable] = MappingProxyType({})) -> Rates:
    """Return the rates to expect of `machine` before any run; `tables` are the types measured, by device name."""
    devices = (machine.host, *machine.gpus)
    seconds_per_byte, seconds_per_operation = {}, {}
    for device in devices:
        bytes_per_s = device.bytes_per_s or _ASSUMED_BYTES_PER_S[device.kind]
        reached_bytes_per_s = _REACHED[device.kind] * bytes_per_s
        reached_operations_per_s = _OPERATIONS_PER_BYTE[device.kind] * bytes_per_s
        if device.speed:
            reached_bytes_per_s = _REACHED_OF_PRODUCTS * device.speed.bytes_per_s
            reached_operations_per_s = _REACHED_OF_PRODUCTS * device.speed.operations_per_s
        if device.n_cores:
            reached_operations_per_s = min(reached_operations_per_s, _OPERATIONS_PER_CORE * device.n_cores)
        seconds_per_byte[device.name] = 1 / reached_bytes_per_s
        seconds_per_operation[device.name] = 1 / reached_operations_per_s
    host = tables.get(machine.host.name)
    rates = Rates(
        seconds_per_byte=seconds_per_byte,
        attention_seconds_per_byte=seconds_per_byte[machine.host.name],
        seconds_per_operation=seconds_per_operation,
        link_seconds_per_byte={
            device.name: (0.0 if device.shares_host else 1 / (device.link_bytes_per_s or _ASSUMED_LINK_BYTES_PER_S))
            for device in machine.gpus
            if not device.is_remote
        },
        known=frozenset(device.name for device in devices if device.bytes_per_s or device.name in tables),
        latency_s={device.name: device.link_latency_s for device in machine.gpus if device.link_latency_s is not None},
        tables=tables,
        uncertainty=_MEASURED_UNCERTAINTY if host else _UNCERTAINTY,
    )
    if host is None or host.graph is None:
        return rates
    return replace(
        rates, layer_s=host.graph.layer_s + ANSWER_BUILDING_S, fixed_s=ANSWER_FIXED_S, prompt_token_s=_PROMPT_TOKEN_S
    )


def decode_s(work: Work, rates: Rates) -> float:
    """Return the seconds for one token of an answer: reading, one device after the other."""
    reading_s = sum(reading_by_device(work, rates).values())
    overhead_s = _waiting_s(work, rates) + rates.overhead_s(work.n_layers, work.n_crossings)
    return reading_s + rates.attention_s(_host_of(work, rates), work) + overhead_s


def _host_of(work: Work, rates: Rates) -> str:
    return next((name for name in work.read_bytes if name not in rates.link_seconds_per_byte), "")


def reading_by_device(work: Work, rates: Rates, model_bytes: float | None = None) -> dict[str, float]:
    """Return the seconds that each device takes for what a token of an answer reads, of weights of `model_bytes` in all
    (None: those of `work`). What runs taught of a kind is the processor's; a GPU's table is of products alone, and what
    it reads besides weights is its cache."""
    found = {}
    for name, n_bytes in work.read_bytes.items():
        weights = work.weights.get(name, {})
        if name not in rates.tables or not weights:
            found[name] = n_bytes * rates.seconds_per_byte[name]
            expected_s = rates.weights_s(name, weights, model_bytes) if rates.weight_factors else {}
            found[name] += sum((rates.weight_factors.get(kind, 1.0) - 1) * each for kind, each in expected_s.items())
            continue
        seconds = rates.weights_s(name, weights, model_bytes)
        if name in rates.link_seconds_per_byte or name in rates.latency_s:
            cache_s = max(0.0, n_bytes - bytes_of(weights)) * rates.seconds_per_byte[name]
            found[name] = sum(seconds.values()) + cache_s
        else:
            found[name] = corrected_s(seconds, rates.weight_factors)
    return found


def prefill_s(work: Work, rates: Rates, host: str, n_ubatch: int) -> float:
    """Return the seconds that one token of a prompt takes in micro-batches of `n_ubatch`. Each device computes or
    reads, whichever takes longer; a GPU that computes with the weights of the processor fetches them first."""
    seconds = {}
    for name, operations in work.operations.items():
        reading_s = work.read_bytes.get(name, 0.0) * rates.seconds_per_byte[name] / n_ubatch
        computing_s = operations * rates.seconds_per_operation[name]
        if name == host and work.host_operations:
            by_kind = rates.operations_s(host, work, n_ubatch)
            computing_s = corrected_s(by_kind, rates.operation_factors)
        elif name != host:
            computing_s = gpu_operations_s(rates, name, work.weights.get(name, {}), operations, n_ubatch)
        seconds[name] = max(computing_s, reading_s)
    if host in seconds and work.prompt_gpu:
        attending_s = corrected_s(rates.operations_s(host, work, n_ubatch), rates.operation_factors)
        fetching_s = work.fetched_bytes * rates.link_seconds_per_byte[work.prompt_gpu] / n_ubatch
        computing_s = work.operations[host] * rates.seconds_per_operation[work.prompt_gpu]
        seconds[host] = attending_s + fetching_s + computing_s
    overhead_s = _waiting_s(work, rates) + rates.overhead_s(work.n_layers, work.n_crossings)
    return sum(seconds.values()) + overhead_s / n_ubatch + rates.prompt_token_s


def corrected_s(seconds: Mapping[str, float], factors: Mapping[str, float]) -> float:
    """Return the `seconds` of all kinds, each times what runs taught of it."""
    return sum(factors.get(kind, 1.0) * each for kind, each in seconds.items())


def gpu_operations_s(rates: Rates, gpu: str, weights: Weights, operations: float, n_ubatch: int) -> float:
    """Return the seconds of `gpu` for one token of a prompt: for its `weights` where types were measured there, else
    for all `operations`. The seconds of layers add up to those of a model."""
    table, operation_s = rates.tables.get(gpu), rates.seconds_per_operation[gpu]
    if table is None:
        return operations * operation_s
    return sum(
        cost.prompt(n_ubatch).of(work) / REACHED_IN_MODELS
        if (cost := table.cost(kind))
        else _OPERATIONS_PER_WEIGHT * work.n_weights * operation_s
        for kind, work in weights.items()
    )


def host_products_s(rates: Rates, host: str, weights: Weights, n_ubatch: int) -> float:
    """Return the seconds of the processor, called `host`, for products with `weights` in a token of a prompt."""
    work = Work(read_bytes={}, host_operations=operations_of(weights), weights={host: weights})
    return corrected_s(rates.operations_s(host, work, n_ubatch), rates.operation_factors)


def operations_of(weights: Weights) -> dict[str, float]:
    """Return the operations of a token on `weights`, by kind."""
    return {kind: _OPERATIONS_PER_WEIGHT * work.n_weights for kind, work in weights.items()}


def _waiting_s(work: Work, rates: Rates) -> float:
    return sum(rates.latency_s.get(name, 0.0) for name, n_bytes in work.read_bytes.items() if n_bytes)


# By type, for each weight. Those that are not quantized, Q8_0 and Q6_K come as fast as memory gives them. fmt: off
_UNPACKING = {
    "F32": 0.0,
    "F16": 0.0,
    "BF16": 0.0,
    "Q8_0": 0.04,
    "Q6_K": 0.0,
    "Q5_K": 0.18,
    "Q5_0": 0.43,
    "Q5_1": 0.43,
    "Q4_K": 0.21,
    "Q4_0": 0.24,
    "Q4_1": 0.24,
    "IQ4_NL": 0.24,
    "IQ4_XS": 0.29,
    "MXFP4": 0.17,
    "Q3_K": 0.22,
    "IQ3_S": 1.29,
    "Q2_K": 0.3,
    "IQ2_S": 0.57,
}
# fmt: on
_UNPACKING_OF_OTHERS = 1.0
# For each row of a matrix: what its sum takes, which repacked weights have for several rows at once.
_ROW_BYTES, _PLAIN_ROW_BYTES, _REPACKED_ROW_BYTES = 630.0, 0.0, 95.0
_REPACKED = ("Q4_0", "Q4_K", "Q2_K", "IQ4_NL", "MXFP4")
# Kinds beside the types, counted in operations of Q4_0.
ATTENTION, FUSED_ATTENTION, ELEMENTS = "attention", "fused attention", "elements"
# How many times the seconds of an operation of Q4_0 one of a kind takes on a processor, in a prompt. Of types from
# prompts of 256 tokens to a Qwen3 0.6B all of one type on 2 AVX-512 cores, attention and steps between products taken
# off; those marked * from the guide in each type, beside Q8_0.
HOST_FACTORS = {
    "F32": 1.8,  # *
    "F16": 1.6,  # *
    "BF16": 1.0,  # *
    "Q8_0": 1.4,
    "Q6_K": 0.9,
    "Q5_K": 0.55,
    "Q5_0": 1.75,
    "Q5_1": 4.2,  # *
    "Q4_K": 1.1,
    "Q4_0": 1.0,
    "Q4_1": 3.8,
    "IQ4_NL": 1.15,
    "IQ4_XS": 0.75,
    "Q3_K": 0.7,
    "IQ3_S": 0.7,  # *
    "Q2_K": 1.95,
    ATTENTION: 1.0,
    FUSED_ATTENTION: 1.0,
    ELEMENTS: 1.0,
}
_FACTOR_OF_OTHERS = 2.0
# Of three models with heads of 64 and 256 and widths of 256 to 640, a thread alone: 3.6 ns for the softmax of a score
# and 0.0096 for each operation of its products; 3 ns for each element of a token between products, such as norms,
# rotations and the quantization of what is multiplied next. An operation of Q4_0 takes 0.006.
_SCORE_OPERATIONS, _OPERATIONS_OF_PRODUCTS, _ELEMENT_OPERATIONS = 600.0, 1.6, 500.0
_STATE_OPERATIONS = 10.0  # each element of a state: decayed, added to and multiplied
_SCORE_BYTES = 180  # the softmax of one head and one token, beside the products of its elements: a byte for each
_FUSED_FACTOR = 3.5  # fused attention takes so many times as long on a processor
_STATE_BYTES = 8.0  # each element of a state is read and written
_STATE_ELEMENTS = 4.0  # as which it counts beside those of a cache, of two bytes
_CELL_BLOCK = 256  # attention that is not fused computes whole blocks of cells, masked ones too


_GRAPH_FIELDS = {
    ATTENTION: "prompt_attention_s",
    FUSED_ATTENTION: "fused_prompt_attention_s",
    ELEMENTS: "element_s",
}


def unpacking_bytes(tensor: TensorInfo, read_share: float = 1.0) -> float:
    """Return the work on the weights of `tensor` beyond reading, where `read_share` of them is read."""
    type_ = TENSOR_TYPES[tensor.type_id]
    n_rows = tensor.n_elements / tensor.shape[0] if len(tensor.shape) > 1 else 0.0
    return read_share * _unpacking(type_, tensor.n_elements, n_rows, is_repacked=type_.name in _REPACKED)


def _unpacking(type_: TensorType, n_weights: float, n_rows: float, *, is_repacked: bool) -> float:
    row_bytes = _REPACKED_ROW_BYTES if is_repacked else _ROW_BYTES
    row_bytes = row_bytes if type_.is_quantized else _PLAIN_ROW_BYTES
    return n_weights * _UNPACKING.get(type_.name, _UNPACKING_OF_OTHERS) + n_rows * row_bytes


def _expected_bytes(kind: str, work: TypeWork) -> float:
    """Return what `work` on weights of `kind` takes, in bytes read."""
    type_ = tensor_type_named(type_of(kind))
    is_repacked = has_repacked_path(kind) and type_.name in _REPACKED
    unpacking = _unpacking(type_, work.n_weights, work.n_rows, is_repacked=is_repacked)
    return work.n_weights * type_.bits_per_weight / 8 + unpacking


def prompt_attention_unit(n_heads: float, n_seen: float, head_elements: float) -> float:
    """Return the operations of a token of a prompt that attends to `n_seen` others."""
    return n_heads * n_seen * (_SCORE_OPERATIONS + _OPERATIONS_OF_PRODUCTS * 2 * head_elements)


def element_unit(n_elements: float) -> float:
    return n_elements * _ELEMENT_OPERATIONS


def attention_works(header: Header, caches: LayerCaches, depth: int, *, is_fused: bool) -> Iterator[TypeWork]:
    """Yield the elements of keys and values that each main layer attends to after `depth` tokens, and the scores. Fused
    attention skips masked cells. A layer with a state has no scores, and its elements count twice as read."""
    layers = caches.main_layers
    heads = layer_values(header, "attention.head_count", len(layers))
    kv_heads = layer_values(header, "attention.head_count_kv", len(layers))
    for layer, n_heads, n_kv_heads in zip(layers, heads, kv_heads, strict=True):
        sharing = n_kv_heads or n_heads or 1
        k_head = layer.k_elements / sharing
        head_elements = k_head + (layer.v_elements / sharing or k_head)
        n_seen = min(depth, caches.n_window or depth) if layer.is_windowed and is_fused else depth
        n_cells = n_seen if is_fused else _CELL_BLOCK * (depth // _CELL_BLOCK + 1)
        n_scores = n_heads * n_cells if layer.k_elements else 0
        yield TypeWork(n_scores * head_elements or _STATE_ELEMENTS * layer.state_elements, n_scores)


def attention_bytes(work: TypeWork, *, is_fused: bool) -> float:
    """Return what a processor could read meanwhile, where it was not measured."""
    if not work.n_rows:
        return _STATE_BYTES / _STATE_ELEMENTS * work.n_weights
    return (_FUSED_FACTOR if is_fused else 1.0) * (_SCORE_BYTES * work.n_rows + work.n_weights)


def prompt_operations(
    header: Header,
    caches: LayerCaches,
    weights: Weights,
    n_elements: float,
    depth: float,
    *,
    is_fused: bool = False,
) -> dict[str, float]:
    """Return what a processor computes for one token of a prompt behind `depth` others, by kind: operations on
    `weights`, steps on `n_elements` between products, and attention, of which a window sees a part."""
    layers = caches.main_layers
    heads = layer_values(header, "attention.head_count", len(layers))
    kv_heads = layer_values(header, "attention.head_count_kv", len(layers))
    attending = 0.0
    for layer, n_heads, n_kv_heads in zip(layers, heads, kv_heads, strict=True):
        sharing = n_kv_heads or n_heads or 1
        head_elements = (layer.k_elements + (layer.v_elements or layer.k_elements)) / sharing
        n_seen = min(depth, caches.n_window or depth) if layer.is_windowed else depth
        attending += prompt_attention_unit(n_heads if layer.k_elements else 0, n_seen, head_elements)
        attending += 0.0 if layer.k_elements else _STATE_OPERATIONS * layer.state_elements
    of_weights = operations_of(weights)
    attention = FUSED_ATTENTION if is_fused else ATTENTION
    return {**of_weights, ELEMENTS: element_unit(n_elements), attention: attending}
