#!/usr/bin/env bash
# Asks promtool about the rules of a PrometheusRule in a render of the chart: promtool.sh RENDER [TESTS]
set -euo pipefail
if ! command -v promtool >/dev/null; then
  echo "promtool is not here (Debian: prometheus); the rules are not checked" >&2
  exit 1
fi
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
rules="$folder/rules.yaml"
# What is below `spec:` of the one PrometheusRule is a rules file.
awk '/^---/ { in_rule = in_spec = 0 } /^kind: PrometheusRule/ { in_rule = 1 } in_rule && in_spec { sub(/^  /, ""); print } in_rule && /^spec:/ { in_spec = 1 }' "$1" >"$rules"
promtool check rules "$rules"
if [[ -n "${2:-}" ]]; then
  # It names the rules by their place beside it.
  cp "$2" "$folder/tests.yaml"
  promtool test rules "$folder/tests.yaml"
fi
