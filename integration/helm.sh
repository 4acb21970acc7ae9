#!/usr/bin/env bash
# Prints the path of the helm program: the one on PATH, or one that is built from its Go module once and kept.
set -euo pipefail
version=v3.20.2
if command -v helm; then exit; fi
home="${XDG_CACHE_HOME:-$HOME/.cache}/heddle-testbed/helm-$version"
if [[ ! -x "$home/bin/helm" ]]; then
  export PATH="$PATH:/usr/local/go/bin"
  mkdir -p "$home/bin"
  cd "$home"
  [[ -f go.mod ]] || go mod init helm-build >&2
  go get "helm.sh/helm/v3/cmd/helm@$version" >&2
  CGO_ENABLED=0 go build -trimpath -ldflags "-s -w" -o bin/ helm.sh/helm/v3/cmd/helm >&2
fi
echo "$home/bin/helm"
