# shellcheck shell=bash disable=SC2034,SC2154
# Names that the testbed's scripts share. Sourced.

# Several testbeds can be up side by side, each with a number from 0 to 9.
number=${HEDDLE_TESTBED:-0}
# Where a testbed keeps its state.
state=${HEDDLE_TESTBED_DIR:-/var/tmp}/heddle-testbed-$number
# In number 0, 10.77.0.1 is the control plane, 10.77.0.254 this machine, 10.77.0.(10+N) node N; its pods are in 10.78.N.0/24.
network=10.$((77 + 2 * number)).0
pods=10.$((78 + 2 * number))
services=10.96.0
# The NVLink domain of the nodes; their clique is number 1 of it, if nothing else is asked for.
clique=48656464-6c65-4000-8000-000000000000
# The root of the nodes' cgroups, in each hierarchy of version 1 or in the one of version 2.
cgroup=heddle-testbed-$number
# This machine's end of the link to it.
link=heddle-bed-$number
cgroup_v1_hierarchies=(cpu cpuacct cpuset memory devices freezer blkio pids systemd)

say() { echo "testbed: $*" >&2; }
die() { say "$*"; exit 1; }

# Under pipefail a command fails, now and then, of which a reader wants no more: so these two read to the end.
# first: the first line. has GREP-ARGUMENTS...: whether there is such a line (grep itself stops early if it may not print).
first() { sed -n 1p; }
has() { grep "$@" | cat >/dev/null; }

# wait_for SECONDS WHAT COMMAND...: until the command succeeds.
wait_for() {
  local limit=$1 what=$2 began=$SECONDS
  shift 2
  until "$@" >/dev/null 2>&1; do
    ((SECONDS - began < limit)) || die "$what has not come within $limit s; see $state/logs"
    sleep 0.2
  done
}

# Of the Kubernetes that is up, as administrator.
kubectl() { "${programs:=$(cat "$state/programs")}/kubectl" --kubeconfig "$state/admin.kubeconfig" "$@"; }
helm() { KUBECONFIG=$state/admin.kubeconfig "${programs:=$(cat "$state/programs")}/helm" "$@"; }
# The numbers of its nodes.
nodes() { seq "$(cat "$state/nodes")"; }

node_address() { echo "$network.$((10 + $1))"; }

cgroup_v2() { [ -e /sys/fs/cgroup/cgroup.controllers ]; }

# The cgroup folders of one node.
node_cgroups() {
  local hierarchy
  if cgroup_v2; then
    echo "/sys/fs/cgroup/$cgroup/node-$1"
  else
    for hierarchy in "${cgroup_v1_hierarchies[@]}"; do
      [ ! -d "/sys/fs/cgroup/$hierarchy" ] || echo "/sys/fs/cgroup/$hierarchy/$cgroup/node-$1"
    done
  fi
}

# keep NAME COMMAND...: starts the command again whenever it ends, as systemd would, unless $units/NAME.stopped is there.
# Its process id is in $units/NAME.pid, as this script's own namespace counts.
keep() {
  local name=$1
  shift
  (
    while :; do
      while [ -e "$units/$name.stopped" ]; do sleep 0.2; done
      "$@" >>"$logs/$name.log" 2>&1 &
      echo $! >"$units/$name.pid"
      wait $! || true
      rm -f "$units/$name.pid"
      sleep 0.3
    done
  ) &
}
