#!/usr/bin/env bash
# The first process of the cluster's namespaces: network and control plane, then the nodes. `testbed up` starts it.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
. "$here/common.sh"
nodes=$1
logs=$state/logs
units=$state/units
programs=$(cat "$state/programs")
export PATH="$programs:$PATH"
hostname control-plane

ip link set lo up
ip link add bridge0 type bridge
# The API server's address in the cluster is its own, so that no proxy is needed for it.
ip addr add "$network.1/24" dev bridge0
ip addr add "$services.1/32" dev lo
ip link set bridge0 up
echo 1 >/proc/sys/net/ipv4/ip_forward
for ((node = 1; node <= nodes; node++)); do
  ip route add "$pods.$node.0/24" via "$(node_address "$node")"
done

# What a suite's case needs and the version does not have on by itself.
gates=() apis=()
if [ "$(printf '%s\n' 1.36 "$(basename "$programs" | sed 's/^bin-v//')" | sort -V | first)" = 1.36 ]; then
  gates=(--feature-gates=DRADeviceTaintRules=true)
  apis=(--runtime-config=resource.k8s.io/v1beta2=true)
fi

keep etcd etcd --data-dir "$state/etcd" --unsafe-no-fsync --log-level warn \
  --listen-client-urls http://127.0.0.1:2379 --advertise-client-urls http://127.0.0.1:2379 --listen-peer-urls http://127.0.0.1:2380
keep kube-apiserver kube-apiserver --etcd-servers=http://127.0.0.1:2379 --cert-dir="$state/pki" \
  --bind-address=0.0.0.0 --secure-port=443 --advertise-address="$network.1" --service-cluster-ip-range="$services.0/16" \
  --service-account-key-file="$state/pki/sa.key" --service-account-signing-key-file="$state/pki/sa.key" \
  --service-account-issuer=https://kubernetes.default.svc --token-auth-file="$state/pki/tokens.csv" \
  --authorization-mode=Node,RBAC --enable-admission-plugins=NodeRestriction --allow-privileged=true \
  "${gates[@]}" "${apis[@]}" \
  --kubelet-preferred-address-types=InternalIP \
  --audit-policy-file="$here/audit-policy.yaml" --audit-log-path="$logs/audit.log" --audit-log-maxsize=500 --audit-log-maxbackup=1
client() { local name=$1; shift; echo "--kubeconfig=$state/$name.kubeconfig --authentication-kubeconfig=$state/$name.kubeconfig --authorization-kubeconfig=$state/$name.kubeconfig"; }
# They end when the API server is not there yet, and are started again.
# shellcheck disable=SC2046
keep kube-scheduler kube-scheduler $(client scheduler) --leader-elect=false "${gates[@]}"
# shellcheck disable=SC2046
keep kube-controller-manager kube-controller-manager $(client controller-manager) --leader-elect=false --use-service-account-credentials=true \
  --service-account-private-key-file="$state/pki/sa.key" --root-ca-file="$state/pki/apiserver.crt" \
  --node-monitor-grace-period=20s "${gates[@]}"

# A node is a process that is first in its own namespaces; it is started as long as its folder says that it is on.
node() {
  local node=$1 folder=$state/node-$1
  mkdir -p "$folder/units"
  touch "$folder/on"
  while :; do
    while [ ! -e "$folder/on" ]; do sleep 0.2; done
    rm -f "$folder/units/"*
    unshare --mount --net --pid --uts --ipc --propagation private --fork --kill-child=KILL --mount-proc \
      "$here/node.sh" "$node" >>"$logs/node-$node.log" 2>&1 &
    local pid=$!
    echo "$pid" >"$folder/pid"
    local inner=
    until inner=$(pgrep -P "$pid") || [ ! -d "/proc/$pid" ]; do sleep 0.05; done
    if [ -n "$inner" ]; then
      ip link add "node$node" type veth peer name eth0 netns "$inner"
      ip link set "node$node" master bridge0 up
    fi
    wait "$pid" || true
    rm -f "$folder/pid"
    sleep 0.3
  done
}
for ((node = 1; node <= nodes; node++)); do
  node "$node" &
done
wait
