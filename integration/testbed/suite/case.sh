#!/usr/bin/env bash
# One case of the suite: case.sh FILE CASE ROUND
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
. "$here/lib.sh"
file=$1 name=$2 round=$3

# Short: names of pods and claims are made of it. The round is in it, as a namespace may still be going.
ns=$(printf 't-%.40s-%s' "$(tr _ - <<<"${name#case_}")" "$round")
# shellcheck source=/dev/null
. "$file"

ended() {
  local code=$?
  trap - EXIT
  if ((code)); then explain || true; fi
  clean_up || code=1
  exit "$code"
}
trap ended EXIT
trap 'say "the time of the case is over"; exit 124' TERM
create_namespace "$ns"
"$name"
