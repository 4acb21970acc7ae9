#!/usr/bin/env bash
# Compares the structures and constants that the binding and its fake are built on with NVIDIA's own header. The header
# comes from NVIDIA's package on PyPI, is used here and kept nowhere.
set -euo pipefail
cd "$(dirname "$0")"

version=13.4.92
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: \
  --platform manylinux_2_17_x86_64 --dest "$folder" "nvidia-nvml-dev==$version"
python3 -m zipfile -e "$folder"/nvidia_nvml_dev-*.whl "$folder"
cc -I "$folder/nvidia/cu13/include" -Wall -Wextra -Werror -o "$folder/check" header.c
"$folder/check"
echo "as in NVIDIA's nvml.h $version"
