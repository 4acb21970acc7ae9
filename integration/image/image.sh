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
native="$(rustc -vV | sed -n 's/^host: //p')"
binaries=()
for architecture in $architectures; do
  target="${targets[$architecture]}"
  if [[ "$target" == "$native" ]]; then
    cargo build --profile dist --no-default-features -p heddle
    binaries+=(--binary "$architecture=target/dist/heddle")
  else
    linker="CARGO_TARGET_$(tr 'a-z-' 'A-Z_' <<<"$target")_LINKER"
    env "$linker=${target/unknown-/}-gcc" cargo build --profile dist --no-default-features -p heddle --target "$target"
    binaries+=(--binary "$architecture=target/$target/dist/heddle")
  fi
done

case "$what" in
  build) python3 integration/image/build.py --out target/image "${binaries[@]}" ;;
  check) python3 integration/image/check.py --out target/image "${binaries[@]}" ;;
  *) echo "image.sh: build or check, not $what" >&2; exit 2 ;;
esac
