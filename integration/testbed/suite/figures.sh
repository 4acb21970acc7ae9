#!/usr/bin/env bash
# What Heddle costs on this testbed, beside the budgets: docs/bench.md says what each figure means. FIGURES_PODS is how many pods
# with a claim are measured, and as many without (20).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=SCRIPTDIR/lib.sh
. "$here/lib.sh"
pods_measured=${FIGURES_PODS:-20}
ns=figures
folder=$state/suite/figures
rm -rf "$folder"
mkdir -p "$folder"

stamped() { python3 -uc 'import sys, time
for line in sys.stdin: print(f"{time.time():.4f}", line, end="", flush=True)'; }
# watched RESOURCE TEMPLATE FILE: what the API tells of each change, with the time at which it was told.
watched() { kn get "$1" --watch --no-headers -o "jsonpath=$2{\"\\n\"}" 2>/dev/null | stamped >"$folder/$3" & }
agent_address() { k -n heddle get pod "$(agent_on node-1)" -o 'jsonpath={.status.podIP}'; }
metrics() { curl -sf -m 10 "http://$(agent_address):8080/metrics"; }
gone() { absent pod "$1"; }

# processes NUMBER: ROLE RSS-KIB ANONYMOUS-KIB CPU-TICKS for each process of Heddle on the node.
# shellcheck disable=SC2016
processes() {
  testbed in "$1" sh -c 'for p in /proc/[0-9]*; do
      set -- $(tr "\0" " " <$p/cmdline 2>/dev/null)
      case "$1 $2" in */heddle\ agent | */heddle\ imex-runner | */heddle\ controller)
        echo "$2 $(sed -n "s/^\(VmRSS\|RssAnon\):[^0-9]*\([0-9]*\).*/\2/p" $p/status | tr "\n" " ") $(cut -d")" -f2 $p/stat | cut -d" " -f13,14)";;
      esac
    done' | awk '{print $1, $2, $3, $4 + $5}'
}
all_processes() { local node; for node in $(nodes); do processes "$node" | sed "s/^/$node /"; done; }

measure() {
  compute_domain team | kn apply -f - >/dev/null
  # The first pod is the first of its ComputeDomain and stays; what is measured comes to a node that is in it.
  pod first team node-1 | kn apply -f - >/dev/null
  eventually 60 "the first pod" running first
  watched pods '{.metadata.name} {.status.phase}' pods
  watched resourceclaims '{.metadata.name} {.status.allocation.devices.results[0].device} {.status.devices[0].device}' claims
  eventually 20 "a watch on pods" test -s "$folder/pods"
  eventually 20 "a watch on claims" test -s "$folder/claims"
  metrics >"$folder/before"
  all_processes >"$folder/processes-before"
  local audit=$state/logs/audit.log from n name
  from=$(wc -l <"$audit") began=$(date +%s%3N)
  for ((n = 1; n <= pods_measured; n++)); do
    for name in "with-$n" "without-$n"; do
      if [[ $name = without-* ]]; then pod_without_claim "$name" node-1; else pod "$name" team node-1; fi | kn apply -f - >/dev/null
      eventually 60 "$name" running "$name"
      kn delete pod "$name" --grace-period=1 --wait=false >/dev/null
      eventually 60 "the end of $name" gone "$name"
    done
  done
  # Until all is undone: the last requests of a claim come after its pod.
  eventually 60 "the end of the claims" claims_are_gone
  took=$(($(date +%s%3N) - began))
  metrics >"$folder/after"
  all_processes >"$folder/processes-after"
  # Once more whole lines than there were: the log is only appended to.
  tail -n +"$((from + 1))" "$audit" >"$folder/audit"
}
claims_are_gone() { is "$(kn get resourceclaims -o name | wc -l)" 1; }

ended() {
  local code=$?
  trap - EXIT
  clean_up || code=1
  exit "$code"
}
trap ended EXIT
create_namespace "$ns"
measure
python3 "$here/figures.py" "$folder" "$pods_measured" "$took" "$(cat "$state/install-milliseconds" 2>/dev/null || echo 0)" "$(cat "$state/image-bytes" 2>/dev/null || echo 0)" \
  "$(getconf CLK_TCK)"
