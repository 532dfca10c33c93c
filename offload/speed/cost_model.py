"""The time per token: the bytes that each device reads at its rate, plus overheads. Pure.

A processor also unpacks weights and computes attention, in bytes that it could have read meanwhile; a GPU does both
while it reads. Those tables were measured on 2 AVX-512 cores that read 19 GB/s, a thread on each: layers of one type
each with rows of 512 to 8,192 weights, and attention of six shapes at 512, 1,792 and 3,584 tokens.

A prompt is bound by computing, where the type of the weights decides: of files of one size one reads five times as fast
as another. What a processor computes for a prompt is therefore kept by kind (`Work.host_operations`): a type of
weights, attention, and the steps between matrix products. What is learned of one kind says nothing of another.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from offload.devices.machine import DeviceKind, Machine
from quantizer.gguf.header import Header, TensorInfo
from quantizer.gguf.hyperparameters import layer_values
from quantizer.gguf.layer_caches import LayerCaches
from quantizer.gguf.tensor_types import TENSOR_TYPES

# The share of a published or measured bandwidth that decoding reaches: 0.55 to 0.7 in llama.cpp's published benchmarks
# of a 7B Q4_0 (discussions 4167, 10879 and 15013 of ggml-org/llama.cpp), on processors too; but those unpack meanwhile,
# which counts for itself, and come near to what was measured where nothing is to be unpacked.
_REACHED = {DeviceKind.GPU: 0.65, DeviceKind.INTEGRATED: 0.65, DeviceKind.CPU: 0.95}
_REACHED_OF_PRODUCTS = 0.9  # the share of what matrix products alone were measured to reach: norms and attention beside
# Operations of a prompt for each byte a second of bandwidth, from the same benchmarks: 60 to 150 on discrete GPUs,
# about 25 on Apple's, about 15 on processors; those have a limit besides, for many channels may feed few cores.
_OPERATIONS_PER_BYTE = {DeviceKind.GPU: 75.0, DeviceKind.INTEGRATED: 25.0, DeviceKind.CPU: 15.0}
_ASSUMED_BYTES_PER_S = {DeviceKind.CPU: 20e9, DeviceKind.INTEGRATED: 30e9, DeviceKind.GPU: 150e9}
_OPERATIONS_PER_CORE = 170e9  # a second, of Q4_0: measured on AVX-512 with VNNI at 3.7 GHz, faster than most others
_ASSUMED_LINK_BYTES_PER_S = 8e9  # PCIe 3.0 with eight lanes
_CROSSING_S = 30e-6  # a wait for the other device and a small copy
_LAYER_S = 20e-6  # starting the dozen operations of a layer, which small layers wait for
_FIXED_S = 0.5e-3  # sampling, and starting a step


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """The time that a machine takes for its work, by device name. `known` are the devices whose figures were published,
    measured or given; a plan for others has no speed. `attention_seconds_per_byte` is the processor's, and so are
    `host_factors`: how many times the seconds of an operation each kind was measured to take. `latency_s` is what a
    step waits for each device of another machine that it uses. `uncertainty` is the share by which a prediction may
    be off."""

    seconds_per_byte: Mapping[str, float]
    seconds_per_operation: Mapping[str, float]
    link_seconds_per_byte: Mapping[str, float]
    known: frozenset[str]
    attention_seconds_per_byte: float
    host_factors: Mapping[str, float] = field(default_factory=dict)
    latency_s: Mapping[str, float] = field(default_factory=dict)
    crossing_s: float = _CROSSING_S
    layer_s: float = _LAYER_S
    fixed_s: float = _FIXED_S
    uncertainty: float = 0.35

    def host_factor(self, kind: str) -> float:
        """Return how many times the seconds of an operation those of a `kind` take on the processor."""
        return self.host_factors.get(kind, HOST_FACTORS.get(kind, _FACTOR_OF_OTHERS))

    def overhead_s(self, n_layers: int, n_crossings: int = 0) -> float:
        return self.fixed_s + n_layers * self.layer_s + n_crossings * self.crossing_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The work of one token: bytes read and operations (multiplications and additions) of each device, layers of all.
    Of the processor `read_bytes` are weights and what it could read while it unpacks them, `attention_bytes` what it
    could read while it attends; `host_operations` are those of a prompt by kind, empty in old records. Between devices
    a token changes `n_crossings` times."""

    read_bytes: Mapping[str, float]
    operations: Mapping[str, float] = field(default_factory=dict)
    attention_bytes: float = 0.0
    host_operations: Mapping[str, float] = field(default_factory=dict)
    n_layers: int = 0
    n_crossings: int = 0


def expected_rates(machine: Machine) -> Rates:
    """Return the rates to expect of `machine` before any measurement."""
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
    return Rates(
        seconds_per_byte=seconds_per_byte,
        attention_seconds_per_byte=seconds_per_byte[machine.host.name],
        seconds_per_operation=seconds_per_operation,
        link_seconds_per_byte={
            device.name: (0.0 if device.shares_host else 1 / (device.link_bytes_per_s or _ASSUMED_LINK_BYTES_PER_S))
            for device in machine.gpus
            if not device.is_remote
        },
        known=frozenset(device.name for device in devices if device.bytes_per_s),
        latency_s={device.name: device.link_latency_s for device in machine.gpus if device.link_latency_s is not None},
    )


def decode_s(work: Work, rates: Rates) -> float:
    """Return the seconds for one token of an answer: reading, one device after the other."""
    reading_s = sum(n_bytes * rates.seconds_per_byte[name] for name, n_bytes in work.read_bytes.items())
    attending_s = work.attention_bytes * rates.attention_seconds_per_byte
    overhead_s = _waiting_s(work, rates) + rates.overhead_s(work.n_layers, work.n_crossings)
    return reading_s + attending_s + overhead_s


def prefill_s(work: Work, rates: Rates, host: str, n_ubatch: int) -> float:
    """Return the seconds that one token of a prompt takes in micro-batches of `n_ubatch`. Each device computes or
    reads, whichever takes longer; what lies with the processor goes for the time being to a GPU that has layers where
    that is faster, as llama.cpp does with large batches."""
    seconds = {}
    for name, operations in work.operations.items():
        reading_s = work.read_bytes.get(name, 0.0) * rates.seconds_per_byte[name] / n_ubatch
        if name == host and work.host_operations:
            operations = sum(count * rates.host_factor(kind) for kind, count in work.host_operations.items())
        seconds[name] = max(operations * rates.seconds_per_operation[name], reading_s)
    if host in seconds:
        n_bytes, operations = work.read_bytes.get(host, 0.0) / n_ubatch, work.operations[host]
        lent_s = [
            n_bytes * seconds_per_byte + operations * rates.seconds_per_operation[name]
            for name, seconds_per_byte in rates.link_seconds_per_byte.items()
            if work.operations.get(name)
        ]
        seconds[host] = min([seconds[host], *lent_s])
    overhead_s = _waiting_s(work, rates) + rates.overhead_s(work.n_layers, work.n_crossings)
    return sum(seconds.values()) + overhead_s / n_ubatch


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
ATTENTION, ELEMENTS = "attention", "elements"  # kinds beside the types; counted in operations of Q4_0
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
_CELL_BLOCK = 256  # attention that is not fused computes whole blocks of cells, masked ones too


def unpacking_bytes(tensor: TensorInfo, read_share: float = 1.0) -> float:
    """Return the work on the weights of `tensor` beyond reading, where `read_share` of them is read."""
    type_ = TENSOR_TYPES[tensor.type_id]
    n_rows = tensor.n_elements / tensor.shape[0] if len(tensor.shape) > 1 else 0.0
    weights_bytes = tensor.n_elements * _UNPACKING.get(type_.name, _UNPACKING_OF_OTHERS)
    row_bytes = _REPACKED_ROW_BYTES if type_.name in _REPACKED else _ROW_BYTES
    return read_share * (weights_bytes + n_rows * (row_bytes if type_.is_quantized else _PLAIN_ROW_BYTES))


def attention_bytes(header: Header, caches: LayerCaches, depth: int, *, is_fused: bool) -> Iterator[float]:
    """Yield the work of each main layer after `depth` tokens; fused attention skips masked cells."""
    layers = caches.main_layers
    heads = layer_values(header, "attention.head_count", len(layers))
    kv_heads = layer_values(header, "attention.head_count_kv", len(layers))
    for layer, n_heads, n_kv_heads in zip(layers, heads, kv_heads, strict=True):
        sharing = n_kv_heads or n_heads or 1
        k_head = layer.k_elements / sharing
        score_bytes = _SCORE_BYTES + k_head + (layer.v_elements / sharing or k_head)
        if not layer.k_elements:
            yield _STATE_BYTES * layer.state_elements
        elif is_fused:
            n_seen = min(depth, caches.n_window or depth) if layer.is_windowed else depth
            yield _FUSED_FACTOR * n_heads * n_seen * score_bytes
        else:
            yield n_heads * _CELL_BLOCK * (depth // _CELL_BLOCK + 1) * score_bytes


def prompt_operations(
    header: Header, caches: LayerCaches, weights: Mapping[str, float], n_elements: float, depth: float
) -> dict[str, float]:
    """Return what a processor computes for one token of a prompt behind `depth` others, by kind: operations on
    `weights` by their type, steps on `n_elements` between products, and attention, of which a window sees a part."""
    layers = caches.main_layers
    heads = layer_values(header, "attention.head_count", len(layers))
    kv_heads = layer_values(header, "attention.head_count_kv", len(layers))
    attending = 0.0
    for layer, n_heads, n_kv_heads in zip(layers, heads, kv_heads, strict=True):
        sharing = n_kv_heads or n_heads or 1
        n_products = 2 * (layer.k_elements + (layer.v_elements or layer.k_elements)) / sharing
        n_seen = min(depth, caches.n_window or depth) if layer.is_windowed else depth
        attending += (
            (n_heads if layer.k_elements else 0) * n_seen * (_SCORE_OPERATIONS + _OPERATIONS_OF_PRODUCTS * n_products)
        )
        attending += 0.0 if layer.k_elements else _STATE_OPERATIONS * layer.state_elements
    return {**weights, ELEMENTS: n_elements * _ELEMENT_OPERATIONS, ATTENTION: attending}
