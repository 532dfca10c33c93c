#!/usr/bin/env bash
# Builds localllm with a real GPU backend that needs no GPU: llama.cpp's Vulkan on Mesa's driver for processors, llvmpipe.
#
#   tests/bench/plans/gpu_backend.sh FOLDER        about ten minutes on two cores; Debian and its like, as root
#   GGML_VK_VISIBLE_DEVICES=0 FOLDER/environment/bin/python -m pytest -m gpu
#
# FOLDER gets an environment of its own, and the build a cache of its own, so that no other environment gets this build.
# llama.cpp needs Vulkan's headers 1.3.280 or newer: where the system's are older, those of Debian's next release are
# unpacked into FOLDER.
set -euo pipefail
folder=$(mkdir -p "${1:?usage: gpu_backend.sh FOLDER}" && cd "$1" && pwd)
cd "$(dirname "$0")/../../.."

apt-get -q update
apt-get -q -y install --no-install-recommends mesa-vulkan-drivers libvulkan-dev glslc spirv-headers

include=/usr/include
version=$(sed -n 's/^#define VK_HEADER_VERSION \([0-9]*\)$/\1/p' $include/vulkan/vulkan_core.h)
if [ "$version" -lt 280 ]; then
  next=$folder/next
  mkdir -p "$next/lists/partial" "$next/cache/archives/partial"
  echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian trixie main" \
    > "$next/sources.list"
  options=(-o "Dir::Etc::sourcelist=$next/sources.list" -o Dir::Etc::sourceparts=- -o "Dir::State::lists=$next/lists"
    -o "Dir::Cache=$next/cache" -o APT::Sandbox::User=root)
  apt-get "${options[@]}" -q update
  (cd "$next" && apt-get "${options[@]}" -q download libvulkan-dev && dpkg -x libvulkan-dev_*.deb headers)
  include=$next/headers/usr/include
fi

UV_PROJECT_ENVIRONMENT=$folder/environment UV_CACHE_DIR=$folder/cache \
  CMAKE_ARGS="-DGGML_VULKAN=on -DGGML_RPC=on -DVulkan_INCLUDE_DIR=$include" uv sync
GGML_VK_VISIBLE_DEVICES=0 "$folder/environment/bin/localllm" doctor
