"""The file with which every build of llama.cpp begins works in a project of the same shape as llama-cpp-python."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from quantizer.system.installation import cmake_file

ROOT = Path(__file__).parents[2]
CMAKE = shutil.which("cmake") or ""
OUTER = """
cmake_minimum_required(VERSION 3.21)
project(llama_cpp NONE)
set(LLAMA_BUILD_COMMON ON CACHE BOOL "" FORCE)
function(llama_cpp_python_install_target target)
endfunction()
add_subdirectory(inner)
"""
INNER = """
cmake_minimum_required(VERSION 3.14...3.28)
project("llama.cpp" NONE)
option(LLAMA_BUILD_COMMON "" OFF)
option(GGML_RPC "" OFF)
message(STATUS "common=${LLAMA_BUILD_COMMON} rpc=${GGML_RPC}")
"""


def configured(folder: Path, *definitions: str) -> str:
    """Return what CMake says of a project that forces llama-common on, as llama-cpp-python does."""
    (folder / "inner").mkdir()
    (folder / "CMakeLists.txt").write_text(OUTER, encoding="utf-8")
    (folder / "inner" / "CMakeLists.txt").write_text(INNER, encoding="utf-8")
    command = [CMAKE, "-S", str(folder), "-B", str(folder / "build"), *(f"-D{each}" for each in definitions)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(not CMAKE, reason="needs CMake")
@pytest.mark.parametrize(
    ("definitions", "expected"),
    [((), "common=OFF rpc=ON"), (("GGML_RPC=OFF",), "common=OFF rpc=OFF"), (("GGML_RPC=ON",), "common=OFF rpc=ON")],
)
def test_a_build_leaves_out_what_is_not_linked_and_has_rpc_unless_told_otherwise(
    tmp_path: Path, definitions: tuple[str, ...], expected: str
) -> None:
    include = f"CMAKE_PROJECT_llama_cpp_INCLUDE={cmake_file().as_posix()}"
    assert expected in configured(tmp_path, include, *definitions)


@pytest.mark.skipif(not CMAKE, reason="needs CMake")
def test_without_the_file_the_project_of_the_test_builds_what_it_forces(tmp_path: Path) -> None:
    assert "common=ON rpc=OFF" in configured(tmp_path)


@pytest.mark.skipif(not CMAKE, reason="needs CMake")
def test_only_the_folder_of_a_wheel_is_ever_cleared(tmp_path: Path) -> None:
    include = f"CMAKE_PROJECT_llama_cpp_INCLUDE={cmake_file().as_posix()}"
    configured(tmp_path, include, f"CMAKE_INSTALL_PREFIX={tmp_path}")
    assert "REMOVE_RECURSE" not in (tmp_path / "build" / "cmake_install.cmake").read_text(encoding="utf-8")


def test_uv_finds_the_file_by_the_name_that_the_project_gives() -> None:
    uv = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["uv"]
    package = tomllib.loads((cmake_file().parent / "pyproject.toml").read_text(encoding="utf-8"))
    (setting,) = uv["config-settings-package"]["llama-cpp-python"].items()
    assert setting == ("cmake.define.CMAKE_PROJECT_llama_cpp_INCLUDE", cmake_file().stem)
    (name,) = uv["extra-build-dependencies"]["llama-cpp-python"]
    assert name == package["project"]["name"]
    assert (ROOT / uv["sources"][name]["path"]) == cmake_file().parent
    (module,) = package["project"]["entry-points"]["cmake.module"].values()
    assert package["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"] == {
        cmake_file().name: f"{module}/{cmake_file().name}"
    }
    # a name is looked up by CMake 3.29 and later only
    assert re.search(r'"cmake>=3\.29"', (cmake_file().parent / "pyproject.toml").read_text(encoding="utf-8"))
