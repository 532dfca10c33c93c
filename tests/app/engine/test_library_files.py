from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from app.engine.library_files import CPU_VARIANT, cpu_variants, library_files, library_folders, load_backends
from app.engine.llama import native

SCORES = {"sapphirerapids": 0, "haswell": 15, "x64": 1, "zen4": 127}


class Ggml:
    """A ggml that notes the calls; `n_linked` backends are registered from the beginning."""

    def __init__(self, n_linked: int = 0) -> None:
        self.n_linked = n_linked
        self.calls: list[tuple[str, str]] = []

    def function(self, name: str, *_types: Any) -> Callable[..., Any]:
        if name == "ggml_backend_reg_count":
            return lambda: self.n_linked
        return lambda path: self.calls.append((name, Path(path.decode()).name))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of libraries, the processor's backend in four variants."""
    lib = tmp_path / "lib"
    lib.mkdir()
    for name in (
        "ggml.so",
        "ggml-base.so",
        "ggml-rpc.so",
        "ggml-vulkan.so",
        *(f"ggml-cpu-{name}.so" for name in SCORES),
    ):
        (lib / f"lib{name}").touch()
        (lib / f"lib{name}.0").touch()  # a version, which is no file of its own
    (lib / "libggml-cpu-broken.so").touch()

    def library(path: str) -> SimpleNamespace:
        if Path(path).name == "libggml-base.so":  # which all of them need
            return SimpleNamespace()
        name = Path(path).stem.removeprefix("libggml-cpu-")
        if name not in SCORES:
            raise OSError("invalid ELF header")
        return SimpleNamespace(ggml_backend_score=_Score(SCORES[name]))

    monkeypatch.setattr(ctypes, "CDLL", library)
    return lib


class _Score:
    def __init__(self, score: int) -> None:
        self._score = score

    def __call__(self) -> int:
        return self._score


def test_backends_in_files_are_loaded_and_the_variants_ranked(folder: Path) -> None:
    ggml = Ggml()
    folders = [folder.parent / "none", folder]
    load_backends(ggml.function, folders, {})
    assert cpu_variants(folders) == ("zen4", "haswell", "x64")
    assert ggml.calls == [("ggml_backend_load_all_from_path", "lib")]


def test_linked_backends_are_not_loaded_again(folder: Path) -> None:
    ggml = Ggml(n_linked=1)
    load_backends(ggml.function, [folder], {})
    assert not ggml.calls


def test_a_chosen_variant_is_loaded_after_the_gpus_and_no_other_is_initialized(folder: Path) -> None:
    ggml = Ggml()
    load_backends(ggml.function, [folder], {CPU_VARIANT: "haswell"})
    files = ["libggml-rpc.so", "libggml-vulkan.so", "libggml-cpu-haswell.so"]
    assert ggml.calls == [("ggml_backend_load", name) for name in files]


@pytest.mark.parametrize("chosen", ["sapphirerapids", "riscv", "../evil"])
def test_a_variant_that_this_processor_cannot_run_is_not_loaded(folder: Path, chosen: str) -> None:
    ggml = Ggml()
    load_backends(ggml.function, [folder], {CPU_VARIANT: chosen})
    assert ggml.calls == [("ggml_backend_load_all_from_path", "lib")]


def test_only_the_first_folder_with_a_backend_is_loaded(folder: Path, tmp_path: Path) -> None:
    """The package keeps some of them twice, which would register their devices twice."""
    other = tmp_path / "bin"
    other.mkdir()
    (other / "ggml-rpc.dll").touch()
    ggml = Ggml()
    load_backends(ggml.function, [other, folder, other], {})
    assert ggml.calls == [("ggml_backend_load_all_from_path", "lib")]
    one = tmp_path / "one"
    one.mkdir()
    (one / "ggml-cpu.dll").touch()  # GGML_BACKEND_DL alone: a single one
    load_backends(ggml.function, [one, folder], {})
    assert cpu_variants([one, folder]) == ()
    assert ggml.calls[-1] == ("ggml_backend_load_all_from_path", "one")


def test_the_installed_library_has_a_processor() -> None:
    kind = native.ggml_function("ggml_backend_dev_by_type", ctypes.c_void_p, ctypes.c_int)
    assert kind(0)
    assert "CPU" in native.system_info()


def test_the_files_of_a_build_are_its_libraries_under_one_name(folder: Path, tmp_path: Path) -> None:
    for name in (
        "libllama.so",
        "libllama.so.0",
        "libmtmd.so",
        "ggml-cuda.dll",
        "libggml-metal.dylib",
        "notes-ggml.txt",
    ):
        (folder / name).touch()
    names = {path.name for path in library_files([folder, tmp_path / "none"])}
    assert {"libllama.so", "libggml-base.so", "libggml-cpu-x64.so", "ggml-cuda.dll", "libggml-metal.dylib"} < names
    assert not [name for name in names if name.endswith((".0", ".txt"))]


def test_the_installed_library_is_found_without_importing_it() -> None:
    assert any(path.name.startswith(("libllama.", "llama.")) for path in library_files(library_folders()))


@pytest.mark.parametrize(
    ("text", "features"),
    [
        ("", {}),
        ("CPU : SSE3 = 1 | AVX = 0 | OPENMP = 1 | ", {"CPU": "SSE3, OPENMP"}),
        (
            "CUDA : ARCHS = 800,900 | F16 = 1 | CPU : AVX2 = 1 | LLAMAFILE = 1 | ",
            {"CUDA": "ARCHS=800,900, F16", "CPU": "AVX2, LLAMAFILE"},
        ),
    ],
)
def test_features_are_parsed_by_backend(text: str, features: dict[str, str]) -> None:
    assert native.parse_system_info(text) == features
