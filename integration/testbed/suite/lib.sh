# shellcheck shell=bash disable=SC2034,SC2154,SC2016
# What the suite's cases are written with. Sourced by case.sh, which sets $ns, the case's own namespace.
suite=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
repository=$(cd "$suite/../../.." && pwd)
. "$suite/../common.sh"
manifests=$repository/integration/manifests
image=nvcr.io/nvidia/cuda:13.0.0-base-ubuntu24.04
programs=$(cat "$state/programs")
# Namespaces that the case has made beside its own, and functions that undo what it has done to the cluster.
namespaces=() undo=()

. "$suite/node.sh"

k() { kubectl "$@"; }
kn() { k -n "$ns" "$@"; }
heddle() { KUBECONFIG=$state/admin.kubeconfig "$state/heddle/heddle" "$@"; }
testbed() { "$suite/../testbed" "$@"; }
fail() { say "$*"; exit 1; }

# eventually SECONDS WHAT COMMAND...: until the command succeeds; what it said last is shown if it never does.
eventually() {
  local limit=$1 what=$2 until=$((SECONDS + $1)) said
  shift 2
  until said=$("$@" 2>&1); do
    if ((SECONDS >= until)); then fail "not within $limit s: $what; last: $(tail -3 <<<"$said")"; fi
    sleep 0.5
  done
}

# always SECONDS WHAT COMMAND...: the command succeeds all the time.
always() {
  local what=$2 until=$((SECONDS + $1)) said
  shift 2
  while ((SECONDS < until)); do
    said=$("$@" 2>&1) || fail "no longer: $what; $(tail -3 <<<"$said")"
    sleep 0.5
  done
}

equal() { [ "$1" = "$2" ] || fail "${3:-value}: expected '$2', got '$1'"; }
is() { [ "$1" = "$2" ] || { echo "it is '$1', not '$2'"; return 1; }; }
contains() { grep -q -e "$2" <<<"$1" || fail "${3:-text}: expected '$2' in: $1"; }

create_namespace() {
  k create namespace "$1" >/dev/null
  namespaces+=("$1")
}

# apply_manifests NAME...: those of integration/manifests, which make namespaces of their names.
apply_manifests() {
  local name
  for name in "$@"; do
    namespaces+=("$name")
    k apply -f "$manifests/$name.yaml" >/dev/null
  done
}

# compute_domain NAME [MODE]: manifest of a ComputeDomain whose template is NAME-channel.
compute_domain() {
  cat <<Y
---
apiVersion: resource.nvidia.com/v1beta1
kind: ComputeDomain
metadata: {name: $1}
spec:
  numNodes: 0
  isolationMode: ${2:-Channel}
  channel:
    resourceClaimTemplate: {name: $1-channel}
Y
}

# pod NAME DOMAIN [NODE]: manifest of a pod with the domain's channel, on the node if one is named.
pod() {
  cat <<Y
---
apiVersion: v1
kind: Pod
metadata: {name: $1, labels: {app: $1}}
spec:
  terminationGracePeriodSeconds: 0
  ${3:+nodeSelector: {kubernetes.io/hostname: $3\}}
  containers:
  - name: worker
    image: $image
    command: [sleep, infinity]
    resources: {claims: [{name: channel}]}
  resourceClaims:
  - {name: channel, resourceClaimTemplateName: $2-channel}
Y
}

# pod_without_claim NAME [NODE]
pod_without_claim() { pod "$1" - "${2:-}" | sed '/resources:/d; /resourceClaims:/,$d'; }
# pod_on_claim NAME CLAIM [NODE]: as pod, with a claim that is there.
pod_on_claim() { pod "$1" - "${3:-}" | sed "s/resourceClaimTemplateName: .*}/resourceClaimName: $2}/"; }

phase() { kn get pod "$1" -o 'jsonpath={.status.phase}'; }
is_pending() { is "$(phase "$1")" Pending; }
running() { local pod; for pod in "$@"; do is "$(phase "$pod")" Running || { echo "$pod"; return 1; }; done; }
# all_running NAMESPACE NUMBER
all_running() {
  is "$(k -n "$1" get pods -o 'jsonpath={range .items[?(@.status.phase=="Running")]}{.metadata.name}{"\n"}{end}' | wc -l)" "$2"
}
absent() { ! k -n "${3:-$ns}" get "$1" "$2" >/dev/null 2>&1; }
ready() { is "$(k -n "${2:-$ns}" get computedomain "$1" -o 'jsonpath={.status.conditions[?(@.type=="Ready")].status}')" True; }
condition() { kn get computedomain "$1" -o "jsonpath={.status.conditions[?(@.type=='$2')].$3}"; }

# channel_of POD [NAMESPACE]: number of the one channel that the pod's container sees.
channel_of() {
  local found
  found=$(k -n "${2:-$ns}" exec "$1" -- sh -c 'cd /dev/nvidia-caps-imex-channels && ls')
  [[ $found =~ ^channel[0-9]+$ ]] || { echo "$1 sees: $found"; return 1; }
  echo "${found#channel}"
}

# channel_by_api DOMAIN [NAMESPACE]: its channel by its status.
channel_by_api() { k -n "${2:-$ns}" get computedomain "$1" -o 'jsonpath={.status.channel}'; }

# export_of POD [NAMESPACE]: exports memory in the pod until the case ends, and prints the handle.
export_of() {
  local file
  file=$(mktemp -p "$state/suite")
  # The program holds it until its input ends.
  k -n "${2:-$ns}" exec "$1" -- sh -c 'sleep 400 | cuda export' >"$file" 2>"$file.err" &
  eventually 15 "memory that $1 exports" exported "$file"
  head -1 "$file"
}

exported() { [ -s "$1" ] || { cat "$1.err"; return 1; }; }

# imports POD HANDLE [NAMESPACE]: whether the pod can import the memory.
imports() { k -n "${3:-$ns}" exec "$1" -- cuda import "$2"; }

# refused POD HANDLE [NAMESPACE]: whether the pod is refused it by a CUDA error, and not by something else.
refused() {
  local said
  if said=$(imports "$@" 2>&1); then echo "imported: $said"; return 1; fi
  grep -q 'refused: CUDA error' <<<"$said" || { echo "$said"; return 1; }
}

imexnode() { k get imexnode "$1" -o "jsonpath=$2"; }
node_of() { k -n "${2:-$ns}" get pod "$1" -o 'jsonpath={.spec.nodeName}'; }
# The IMEX domain that a node's daemon serves.
domain_of() { imexnode "$1" '{.status.daemon.domain}'; }
# agent_on NODE, runner_on NODE: names of their pods.
agent_on() { k -n heddle get pods -l app.kubernetes.io/component=agent --field-selector "spec.nodeName=$1,status.phase=Running" -o 'jsonpath={.items[0].metadata.name}'; }
runner_on() { k -n heddle get pods -l app.kubernetes.io/component=imex --field-selector "spec.nodeName=$1" -o 'jsonpath={.items[0].metadata.name}'; }
# daemon_of NUMBER: process id of the node's IMEX daemon, and when it began.
daemon_of() {
  testbed in "$1" sh -c 'for p in /proc/[0-9]*; do
      case $(tr "\0" " " <$p/cmdline 2>/dev/null) in /usr/bin/nvidia-imex\ *) echo "${p#/proc/} $(cut -d" " -f22 $p/stat)";; esac
    done'
}
daemon_ready() { is "$(imexnode "node-$1" '{.status.daemon.state}')" READY; }
all_ready() {
  local node
  for node in $(nodes); do daemon_ready "$node" || { echo "node-$node"; return 1; }; done
}

# No channel of a ComputeDomain of these namespaces is left anywhere.
nothing_left() {
  local namespace left
  left=$(k get imexdomains -o json)
  for namespace in "$@"; do
    ! grep -q "\"computeDomain\": \"$namespace/" <<<"$left" || { echo "a channel of namespace $namespace is not free"; return 1; }
    ! k get namespace "$namespace" >/dev/null 2>&1 || { echo "namespace $namespace is still there"; return 1; }
  done
}

clean_up() {
  local step jobs
  for ((step = ${#undo[@]} - 1; step >= 0; step--)); do
    # A later case is not to meet what this one has broken. Each for itself, as one that fails would end all.
    (${undo[step]}) >/dev/null 2>&1 || say "could not undo: ${undo[step]}"
  done
  mapfile -t jobs < <(jobs -p)
  ((!${#jobs[@]})) || kill "${jobs[@]}" 2>/dev/null || true
  k delete namespace "${namespaces[@]}" --wait=false >/dev/null 2>&1 || true
  local namespace
  # `sleep` as a container's first process ignores TERM.
  for namespace in "${namespaces[@]}"; do k -n "$namespace" delete pods --all --grace-period=1 --wait=false >/dev/null 2>&1 || true; done
  local until=$((SECONDS + 90)) said
  until said=$(nothing_left "${namespaces[@]}"); do
    if ((SECONDS >= until)); then say "left behind: $said"; return 1; fi
    sleep 0.5
  done
}

# The one log that matters: the pods that do not run with what was last said of them, and the agent of the first one's node.
explain() {
  local namespace pod node
  for namespace in "${namespaces[@]}"; do
    k -n "$namespace" get pods,computedomains -o wide 2>/dev/null | cut -c1-180
    for pod in $(k -n "$namespace" get pods -o 'jsonpath={range .items[?(@.status.phase!="Running")]}{.metadata.name} {end}'); do
      k -n "$namespace" get events --field-selector "involvedObject.name=$pod" --sort-by=.lastTimestamp -o 'jsonpath={range .items[*]}{.reason}: {.message}{"\n"}{end}' | tail -3
      node=$(node_of "$pod" "$namespace")
      if [ -n "$node" ]; then
        echo "agent on $node:"
        k -n heddle logs "$(agent_on "$node")" --tail=12
        return
      fi
    done
  done
}
