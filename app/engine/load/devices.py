"""The devices of this process and the records of earlier loads, for planning where a model's layers go.

Owns the way from a header and the devices that ggml lists to a planner. Runs in the process that loads the model;
native code is imported when called.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

from app.engine.load.machine import check_reachable, detect_machine
from app.engine.load.machine_file import MachineFile, model_key, this_build
from app.engine.load.planner import LoadAttempt, LoadPlanner
from app.engine.load.run_history import fitted_rates
from app.engine.protocol.messages import EngineConfig
from app.engine.tuning.tune_results import RuntimeSettings
from app.protocol.codec import decode, encode
from offload.devices.gpus import ListedGpu
from offload.footprint.auxiliary_models import NO_AUXILIARY_MODELS, AuxiliaryModels
from offload.footprint.model import PlannedModel
from offload.placement.actual_usage import DeviceUsage, ExcessUsage, excess_usage, missing_gpus
from offload.placement.load_parameters import ON_HOST, LoadParameters
from quantizer.errors import EngineError
from quantizer.gguf.header import Header, read_header
from quantizer.gguf.validation import tensors_of

__all__ = ["LoadDevices"]


class LoadDevices:
    """The devices that this process may load onto. `cache_dir` contains the records of earlier loads."""

    def __init__(self, config: EngineConfig, cache_dir: Path) -> None:
        """Add the RPC servers of `config`. Raises EngineError for one that does not answer or has no device."""
        from app.engine import llama

        check_reachable(config.rpc)
        llama.add_rpc_servers(config.rpc)
        self._uses_gpu = config.uses_gpu
        self._rates_of = partial(fitted_rates, cache_dir=cache_dir, n_threads=config.n_threads)
        self._cache_dir = cache_dir
        self._excess = MachineFile(cache_dir / "loads.json", this_build())

    @property
    def has_gpu(self) -> bool:
        """Whether a layer may go elsewhere than to the processor."""
        return bool(self._gpus())

    def planner(
        self, path: Path, header: Header, key: str, auxiliary: AuxiliaryModels = NO_AUXILIARY_MODELS
    ) -> LoadPlanner:
        """Return a planner for the model at `path` in the memory that is free now; `key` is its fingerprint.

        It reserves memory for the `auxiliary` models, which are loaded later.
        """
        from app.engine import llama

        machine = detect_machine(self._gpus(with_links=True), self._cache_dir)
        model = PlannedModel(header, tensors_of(header), auxiliary=auxiliary)
        excess = decode(ExcessUsage, self._excess.entry(key))
        return LoadPlanner(model, machine, partial(llama.dry_compute_bytes, path), excess, self._rates_of)

    def parameters(self, path: Path, config: EngineConfig, setting: RuntimeSettings) -> LoadParameters:
        """Return where the layers of the model at `path` go."""
        if not self.has_gpu:
            return ON_HOST
        return self.planner(path, read_header(path), model_key(path)).attempt(config, setting).parameters

    def check_load(self, attempt: LoadAttempt, usage: Mapping[str, DeviceUsage], key: str) -> None:
        """Compare the `usage` of the model `key` with its plan, and store the excess for the next plan.

        Raises EngineError when a planned GPU got nothing.
        """
        if missing := missing_gpus(attempt.shares, usage):
            raise EngineError(
                f"The plan puts layers on {', '.join(missing)}, but none were loaded there.",
                "See `localllm doctor`; to use the processor alone, set gpu to false.",
            )
        if attempt.shares:
            self._excess.update(key, encode(excess_usage(attempt.shares, usage)))

    def _gpus(self, *, with_links: bool = False) -> list[ListedGpu]:
        from app.engine import llama

        return list(llama.ggml_gpus(with_links=with_links)) if self._uses_gpu else []
