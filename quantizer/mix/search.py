"""The best mix of tensor types for a size, or for a divergence, from how sensitive each tensor is.

The divergence that errors in one tensor cause grows with their square as long as they are small, and those of several
tensors add up: one measurement of a tensor is carried over to all types. On the guide the ratio of divergence to
squared error was the same for Q2_K and for Q5_K within a quarter, tensor by tensor, while it differed between tensors
by a factor of 600. Then it is a knapsack: one choice for each tensor, with the least loss for any number of bytes.
Types set by hand stay.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from quantizer.convert.source_model import SourceModel, SourceTensor
from quantizer.figures import format_figure, format_number, format_speed
from quantizer.gguf.header import padding
from quantizer.gguf.tensor_types import FILE_TYPES, FileType, TensorType, tensor_type_named
from quantizer.mix.imatrix import ColumnWeights
from quantizer.mix.speed import MixSpeeds
from quantizer.mix.type_rules import Category, allows_quantization, category_of, needs_imatrix
from quantizer.system.errors import UsageError
from quantizer.write.dtype_conversion import encode, to_float32
from quantizer.write.plan_options import PlanOptions
from quantizer.write.quantize_plan import QuantizePlan, plan_model

PROBES = ("Q4_K", "Q4_0")  # what a tensor is bent into to be measured: the first that its rows fit


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """The sensitivity of one tensor: with only this tensor in type `probe`, the model diverges by `kld` nats per token.
    `distortions` has the squared error of each type that the tensor may become, and of the probe. It was measured on
    `n_windows` of `n_ctx` tokens."""

    name: str
    probe: str
    kld: float
    distortions: Mapping[str, float]
    n_windows: int = 0
    n_ctx: int = 0

    def loss(self, kind: str) -> float:
        """Return the divergence that `kind`, one of `distortions`, is expected to cause."""
        bent = self.distortions[self.probe]
        return self.kld * self.distortions[kind] / bent if bent else 0.0


_N_SAMPLED = 1 << 18  # elements; the sampled rows are evenly spread
# Types that a tensor may get: all but one-bit types and those for models that are trained for them.
_TYPES = tuple(
    tensor_type_named(name)
    for name in (
        *("IQ2_XXS", "IQ2_XS", "IQ2_S", "Q2_K", "IQ3_XXS", "IQ3_S", "Q3_K", "IQ4_XS", "IQ4_NL", "Q4_0"),
        *("Q4_K", "Q4_1", "Q5_K", "Q5_0", "Q5_1", "Q6_K", "Q8_0"),
    )
)
_LOSSLESS = {"F32": "F16"}  # a smaller type whose loss no measurement shows


def candidates(n_columns: int, stored: TensorType, *, has_weights: bool) -> list[TensorType]:
    """Return the types that a tensor may get: those smaller than its present one, and the one that loses nothing."""
    best = tensor_type_named(_LOSSLESS.get(stored.name, stored.name))
    smaller = [kind for kind in _TYPES if kind.fits(n_columns) and kind.bits_per_weight < best.bits_per_weight]
    return [kind for kind in smaller if has_weights or not needs_imatrix(kind)] + [best]


# Some rows of a tensor, shape (n_rows, n_columns), and what errors in their columns cost.
_Sample = tuple[NDArray[np.float32], NDArray[np.float32] | None]


def distortions(
    tensor: SourceTensor, kinds: Sequence[TensorType], weights: ColumnWeights | None, n_threads: int
) -> list[float]:
    """Return the sum of squared errors, times `weights`, of some rows of `tensor` in each of `kinds`.
    The rows are the same for all of them. Raises what reading and quantizing raise."""
    samples = list(_samples(tensor, weights))
    with ThreadPoolExecutor(n_threads) as pool:
        return list(pool.map(lambda kind: sum(_error(*sample, kind, tensor.name) for sample in samples), kinds))


def _samples(tensor: SourceTensor, weights: ColumnWeights | None) -> Iterator[_Sample]:
    """Yield evenly spread rows, those of each matrix together."""
    n_columns, n_rows = tensor.shape[0], math.prod(tensor.shape[1:])
    step, row_bytes = max(1, n_rows * n_columns // _N_SAMPLED), tensor.stored.row_bytes(n_columns)
    by_matrix: dict[int, list[bytes]] = defaultdict(list)
    for index, data in enumerate(tensor.slabs(step)):
        by_matrix[index * step // weights.n_rows if weights else 0].append(data[:row_bytes])
    for matrix, rows in by_matrix.items():
        of_columns = None if weights is None else weights.values[matrix]
        yield to_float32(b"".join(rows), tensor.stored, n_columns), of_columns


def _error(rows: NDArray[np.float32], weights: NDArray[np.float32] | None, kind: TensorType, name: str) -> float:
    parts = None if weights is None else [(slice(None), weights)]
    bent = to_float32(encode(rows, kind, name, parts), kind, rows.shape[1])
    squares = np.square(rows - bent, dtype=np.float64)
    return float(squares.sum() if weights is None else (squares * weights).sum())


_N_UNITS = 1 << 16  # of which a choice may waste one: what lies between all smallest and all largest, cut so finely


@dataclass(frozen=True, slots=True)
class Choice:
    """One variant of an item."""

    n_bytes: int
    loss: float


class Frontier:
    """The best choices for several items at every size, by dynamic programming over bytes: exact but for rounding.
    Rounding is upwards, so no selection is larger than its limit. An item's choices are identified by index."""

    def __init__(self, items: Sequence[Sequence[Choice]]) -> None:
        self._least = [min(choice.n_bytes for choice in item) for item in items]
        span = sum(max(choice.n_bytes for choice in item) for item in items) - sum(self._least)
        self._unit = -(-span // _N_UNITS) or 1
        self._costs = [
            [-(-(choice.n_bytes - least) // self._unit) for choice in item]
            for item, least in zip(items, self._least, strict=True)
        ]
        self._losses = np.zeros(sum(map(max, self._costs)) + 1)
        self._taken = [
            self._add(costs, [choice.loss for choice in item]) for costs, item in zip(self._costs, items, strict=True)
        ]

    @property
    def least_bytes(self) -> int:
        return sum(self._least)

    @property
    def most_bytes(self) -> int:
        return self.least_bytes + (len(self._losses) - 1) * self._unit

    @property
    def least_loss(self) -> float:
        return float(self._losses[-1])

    def within_bytes(self, n_bytes: int) -> list[int]:
        """Return the choices of least loss that take at most `n_bytes`, which is at least `least_bytes`."""
        assert n_bytes >= self.least_bytes
        return self._selection(min((n_bytes - self.least_bytes) // self._unit, len(self._losses) - 1))

    def within_loss(self, loss: float) -> list[int]:
        """Return the smallest choices that lose at most `loss`, which is at least `least_loss`."""
        assert loss >= self.least_loss
        return self._selection(int(np.argmax(self._losses <= loss)))

    def _add(self, costs: Sequence[int], losses: Sequence[float]) -> NDArray[np.uint8]:
        # puts one more item into the curve and returns which of its choices each size takes
        before = self._losses
        self._losses = np.full_like(before, np.inf)
        taken = np.zeros(len(before), np.uint8)
        for index, (cost, loss) in enumerate(zip(costs, losses, strict=True)):
            with_it = before[: len(before) - cost] + loss
            is_better = with_it < self._losses[cost:]
            self._losses[cost:][is_better] = with_it[is_better]
            taken[cost:][is_better] = index
        return taken

    def _selection(self, n_units: int) -> list[int]:
        chosen = []
        for taken, costs in zip(reversed(self._taken), reversed(self._costs), strict=True):
            chosen.append(int(taken[n_units]))
            n_units -= costs[chosen[-1]]
        return chosen[::-1]


SIZE_TOLERANCE = 0.02  # how far below the asked size a mix may end
# Many types do almost the same to a tensor, and which is best changes with the text that it is measured on. So all but
# these have to earn their place: each costs this share of a tensor's mean loss. On a model of 10M weights, two texts
# gave equal types to 72 % of the tensors before, to 82 % now, for 1.5 % more loss expected on another text.
_USUAL = {"IQ3_XXS", "IQ4_XS", "Q5_K", "Q6_K", "Q8_0"}
_TOLL = 0.2
_PICOSECONDS = 1e12  # of a second: integers, as bytes are
_TIME_TOLL = 0.15  # a mix that takes twice as long as the fastest has to lose this share less

_FINE = "Q8_0"  # also of tensors that nothing is known of, such as layers that only draft
_NOWHERE = Path("mix.gguf")
# Every type that a tensor may become -> the file type that mostly stores it, the usual one where there are several.
_FILE_TYPES = {entry.base_name: entry for entry in reversed(FILE_TYPES.values())}


@dataclass(frozen=True, slots=True)
class Mix:
    """A type for each tensor that is quantized, the bytes of all files, and how far the model is expected to diverge.
    `file_type` is what the file calls itself: most weights have its type. `answer_s` and `prompt_s` are the seconds of
    a token here, 0 where no speeds were given."""

    types: Mapping[str, str]
    file_type: FileType
    n_bytes: int
    kld: float
    answer_s: float = 0.0
    prompt_s: float = 0.0


class MixSearch:
    """The useful mixes of a model under `options`; `sensitivities` by the name of the tensor. `free` are the tensors
    that types are chosen for, name -> shape. With `speeds` a mix may be chosen for its speed, and of mixes that lose
    about the same a faster one is. Raises UsageError where the options leave none."""

    def __init__(
        self,
        model: SourceModel,
        options: PlanOptions,
        sensitivities: Mapping[str, Sensitivity],
        speeds: MixSpeeds | None = None,
    ) -> None:
        self._model = model
        self._speeds = speeds
        self._options = options
        self.sensitivities = sensitivities
        is_tied = self._is_tied = all(category_of(tensor.name) is not Category.OUTPUT for tensor in model.tensors)
        overrides = options.overrides()
        ours = [
            tensor
            for tensor in model.tensors
            if _is_quantizable(tensor, model) and overrides.type_of(tensor.name, is_tied) is None
        ]
        self.free = {tensor.name: tensor.shape for tensor in ours if tensor.name in sensitivities}
        if not self.free:
            raise UsageError("All tensors have a type set by hand.", "Set fewer with --tensor.")
        self._unmeasured = {tensor.name: _FINE for tensor in ours if tensor.name not in sensitivities}
        self._items = [_choices(shape, sensitivities[name]) for name, shape in self.free.items()]
        self._frontier = Frontier(self._items)
        self.smallest = self._mix(self._frontier.within_bytes(self._frontier.least_bytes))
        self.best = self._mix(self._frontier.within_loss(self._frontier.least_loss))

    def check_size(self, n_bytes: int) -> None:
        """Raise UsageError where no mix is as small as `n_bytes`, or all are smaller by more than the tolerance."""
        if not self.smallest.n_bytes <= n_bytes <= self.best.n_bytes / (1 - SIZE_TOLERANCE):
            raise UsageError(
                f"No mix takes {n_bytes:,} bytes.",
                f"This model can have {self.smallest.n_bytes:,} to {self.best.n_bytes:,} bytes.",
            )

    def within_bytes(self, n_bytes: int) -> Mix:
        """Return the mix of the least loss whose files take at most `n_bytes` together. Raises as `check_size`."""
        self.check_size(n_bytes)
        least = self._frontier.least_bytes
        room = n_bytes - (self.smallest.n_bytes - least)
        while (mix := self._mix(self._frontier.within_bytes(room))).n_bytes > n_bytes:
            room = max(least, room - (mix.n_bytes - n_bytes))  # another shard has a header of its own
        usual = self._mix(self._usual(room, mix.kld))
        return usual if n_bytes * (1 - SIZE_TOLERANCE) <= usual.n_bytes <= n_bytes else mix

    def within_speed(self, tokens_per_s: float) -> Mix:
        """Return the mix of the least loss that writes at least `tokens_per_s` here; among its ways to do so, prompts
        and bytes weigh too. Needs speeds. Raises UsageError, with the fastest, where none is as fast."""
        assert self._speeds is not None
        frontier = Frontier(self._weighed_items(self._speeds))
        low, high = frontier.least_bytes, frontier.most_bytes
        fastest = self._mix(frontier.within_bytes(low))
        if fastest.answer_s * tokens_per_s > 1:
            raise UsageError(
                f"No mix writes {format_number(tokens_per_s)} tokens a second here.",
                f"The fastest, of {fastest.n_bytes:,} bytes, writes {format_speed(1 / fastest.answer_s)}.",
            )
        found = fastest
        while high - low > (frontier.most_bytes - frontier.least_bytes) >> 12:
            middle = (low + high + 1) // 2
            mix = self._mix(frontier.within_bytes(middle))
            if mix.answer_s * tokens_per_s <= 1:
                found, low = mix, middle
            else:
                high = middle
        return found

    def _weighed_items(self, speeds: MixSpeeds) -> list[list[Choice]]:
        """Return the choices of each tensor with what they weigh, in picoseconds, in the place of their bytes."""
        items = []
        for (name, shape), item in zip(self.free.items(), self._items, strict=True):
            weights_s = (
                speeds.weight(name, kind, shape, choice.n_bytes, is_tied=self._is_tied)
                for kind, choice in zip(self.sensitivities[name].distortions, item, strict=True)
            )
            pairs = zip(item, weights_s, strict=True)
            items.append([Choice(round(_PICOSECONDS * weight_s), choice.loss) for choice, weight_s in pairs])
        return items

    def within_loss(self, kld: float) -> Mix:
        """Return the smallest mix that is expected to diverge by at most `kld`, or the best or smallest there is."""
        return self._mix(self._frontier.within_loss(max(kld, self._frontier.least_loss)))

    def _usual(self, n_bytes: int, loss: float) -> list[int]:
        """Return choices within `n_bytes` that lose hardly more than `loss`, which is the least, by the usual types."""
        toll = _TOLL * loss / len(self._items)
        items = []
        weighed = self._weighed_items(self._speeds) if self._speeds else [[]] * len(self._items)
        fastest = sum(min((choice.n_bytes for choice in item), default=0) for item in weighed) or 1
        for name, item, weights in zip(self.free, self._items, weighed, strict=True):
            kinds = self.sensitivities[name].distortions
            *_, lossless = kinds
            # rows that are not whole blocks of 256 have few types, which agree anyway
            usual = _USUAL | {lossless} if "IQ4_XS" in kinds else kinds.keys()
            tolls = [0.0 if kind in usual else toll for kind in kinds]
            shares = [each.n_bytes / fastest for each in weights] or [0.0] * len(tolls)
            tolls = [cost + _TIME_TOLL * loss * share for cost, share in zip(tolls, shares, strict=True)]
            items.append([Choice(choice.n_bytes, choice.loss + cost) for choice, cost in zip(item, tolls, strict=True)])
        return Frontier(items).within_bytes(n_bytes)

    def plain(self, file_type: FileType) -> Mix | None:
        """Return the mix of llama.cpp's rules for `file_type`, None where it uses types that no mix has."""
        plan = plan_model(self._model, file_type, _NOWHERE, self._options)
        types = {tensor.output.name: tensor.output.kind for tensor in plan.tensors}
        free = {name: types[name].name for name in self.free}
        if any(kind not in self.sensitivities[name].distortions for name, kind in free.items()):
            return None
        return Mix(free, file_type, plan.n_bytes, self._loss(free), *self._token_s(plan))

    def nearest_plain(self, mix: Mix) -> Mix | None:
        plains = [plain for file_type in FILE_TYPES.values() if (plain := self.plain(file_type)) is not None]
        return min(plains, key=lambda plain: abs(plain.n_bytes - mix.n_bytes), default=None)

    def _mix(self, selection: Sequence[int]) -> Mix:
        chosen = {
            name: list(self.sensitivities[name].distortions)[index]
            for name, index in zip(self.free, selection, strict=True)
        }
        types = {**self._unmeasured, **chosen}
        # it is called after the type of most weights
        weights: Counter[str] = Counter()
        for name, shape in self.free.items():
            weights[types[name]] += math.prod(shape)
        file_type = _FILE_TYPES[weights.most_common(1)[0][0]]
        plan = plan_model(self._model, file_type, _NOWHERE, replace(self._options, mix=types))
        return Mix(types, file_type, plan.n_bytes, self._loss(chosen), *self._token_s(plan))

    def _token_s(self, plan: QuantizePlan) -> tuple[float, float]:
        if self._speeds is None:
            return 0.0, 0.0
        outputs = [tensor.output for tensor in plan.tensors]
        tensors = ((output.name, output.kind.name, output.shape) for output in outputs)
        return self._speeds.token_s(tensors, is_tied=self._is_tied)

    def _loss(self, types: Mapping[str, str]) -> float:
        return sum(self.sensitivities[name].loss(kind) for name, kind in types.items())


def check_unquantized(model: SourceModel) -> None:
    """Raise UsageError where weights are quantized already: the loss of quantizing them cannot be measured."""
    for tensor in model.tensors:
        if tensor.stored.is_quantized and tensor.stored.name != _FINE and _is_quantizable(tensor, model):
            raise UsageError(
                f"{model.name} is already quantized, {tensor.name} to {tensor.stored.name}.",
                "Name the checkpoint, or its F16, BF16 or Q8_0 file.",
            )


def check_reachable(model: SourceModel, options: PlanOptions, n_bytes: int) -> None:
    """Raise UsageError, with the possible range, for a size that no mix has, whatever is measured of tensors."""
    guessed = {}
    for tensor in model.tensors:
        if _is_quantizable(tensor, model):  # every type is possible, and each bit helps
            *coarser, lossless = candidates(tensor.shape[0], tensor.stored, has_weights=True)
            errors = {kind.name: 4.0**-kind.bits_per_weight for kind in coarser} | {lossless.name: 0.0}
            guessed[tensor.name] = Sensitivity(tensor.name, (coarser or [lossless])[0].name, 1.0, errors)
    MixSearch(model, options, guessed).check_size(n_bytes)


def _is_quantizable(tensor: SourceTensor, model: SourceModel) -> bool:
    return allows_quantization(tensor.name, tensor.shape, model.shape.architecture)


def _choices(shape: Sequence[int], sensitivity: Sensitivity) -> list[Choice]:
    sizes = (tensor_type_named(kind).tensor_bytes(shape) for kind in sensitivity.distortions)
    return [
        Choice(n_bytes + padding(n_bytes), sensitivity.loss(kind))
        for n_bytes, kind in zip(sizes, sensitivity.distortions, strict=True)
    ]


KLD_TOLERANCE = 0.1  # how far below the asked divergence a mix may end
_MAX_TRIALS = 8
_AIM = 1 - KLD_TOLERANCE / 2
_NOTHING = 1e-3  # of what is too much: where to look when the other end loses nothing at all


@dataclass(frozen=True, slots=True)
class MeasuredMix:
    """A mix and its measured divergence."""

    mix: Mix
    kld: float


def mix_for_kld(search: MixSearch, target: float, measure: Callable[[Mix], float]) -> MeasuredMix:
    """Return the smallest mix that diverges by at most `target` nats per token, within the tolerance if there is one.

    `measure` is called for each proposal, and its result corrects the next. Where mixes are few, the nearest one below
    is returned. Raises UsageError, with the possible range, for a target beyond it.
    """
    below: MeasuredMix | None = None
    above: MeasuredMix | None = None
    expected = target * _AIM
    for _ in range(_MAX_TRIALS):
        mix = search.within_loss(expected)
        if any(known and known.mix.types == mix.types for known in (below, above)):
            break
        trial = MeasuredMix(mix, measure(mix))
        if trial.kld > target:
            above = trial
        else:
            below = trial
            if trial.kld >= target * (1 - KLD_TOLERANCE):
                return trial
        expected = _next(trial, target, below, above)
    if below is None or below.mix.n_bytes >= search.best.n_bytes:
        least = f" The best mix that is not a copy diverges by {format_figure(above.kld, 2)}." if above else ""
        raise UsageError(f"No mix diverges by as little as {format_number(target)}.{least}", "Give a larger --kld.")
    if below.mix.n_bytes <= search.smallest.n_bytes:
        raise UsageError(
            f"Even the smallest mix, of {below.mix.n_bytes:,} bytes, diverges by only {format_figure(below.kld, 2)}.",
            "Give a smaller --kld.",
        )
    return below


def _next(trial: MeasuredMix, target: float, below: MeasuredMix | None, above: MeasuredMix | None) -> float:
    """Return the divergence to expect of the next mix, between those measured, if the last trial's error recurs."""
    expected = target * _AIM * (trial.mix.kld / trial.kld if trial.kld else 1.0)
    if below is None or above is None:
        return expected
    low, high = below.mix.kld, above.mix.kld
    return expected if low < expected < high else math.sqrt(max(low, high * _NOTHING) * high)
