#!/usr/bin/env bash
# Builds the binaries that the image has, then the image of them: image.sh build|check [--arch amd64|arm64|all]
set -euo pipefail
cd "$(dirname "$0")/../.."

what="$1"
architectures="amd64 arm64"
if [[ "${2:-}" == --arch && "${3:-all}" != all ]]; then
  architectures="$3"
fi

declare -A targets=([amd64]=x86_64-unknown-linux-gnu [arm64]=aarch64-unknown-linux-gnu)
binaries=() wanted=()
for architecture in $architectures; do
  target="${targets[$architecture]}"
  wanted+=(--target "$target")
  binaries+=(--binary "$architecture=target/$target/dist/heddle")
done
# Both at once: the last step of each, which takes minutes, keeps one core busy.
linkers=()
for target in "${targets[@]}"; do
  if [ "$target" != "$(rustc --print host-tuple)" ]; then
    linkers+=("CARGO_TARGET_$(tr 'a-z-' 'A-Z_' <<<"$target")_LINKER=${target/unknown-/}-gcc")
  fi
done
env "${linkers[@]}" cargo build --profile dist --no-default-features -p heddle "${wanted[@]}"

case "$what" in
  build) python3 integration/image/build.py --out target/image "${binaries[@]}" ;;
  check) python3 integration/image/check.py --out target/image "${binaries[@]}" ;;
  *) echo "image.sh: build or check, not $what" >&2; exit 2 ;;
esac
