#!/usr/bin/env bash
# The first process of a node: its mounts, containerd and kubelet. cluster.sh starts it in namespaces of its own.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
. "$here/common.sh"
node=$1
folder=$state/node-$node
logs=$folder/logs
units=$folder/units
programs=$(cat "$state/programs")
mkdir -p "$folder"/{kubelet,containerd,logs}
hostname "node-$node"

ip link set lo up
wait_for 10 "the network of node $node" ip link show eth0
ip addr add "$(node_address "$node")/24" dev eth0
ip link set eth0 up
ip route add default via "$network.1"
echo 1 >/proc/sys/net/ipv4/ip_forward

# What a node has for itself: its disk is laid over this machine's, /run begins empty with each boot.
for place in etc opt var/lib var/log; do
  mkdir -p "$folder/disk/$place" "$folder/scratch/$place"
  mount -t overlay overlay -o "lowerdir=/$place,upperdir=$folder/disk/$place,workdir=$folder/scratch/$place" "/$place"
done
mkdir -p /var/lib/{kubelet,containerd} /etc/cdi /etc/cni/net.d
# containerd lays container over container, and the kernel takes no overlay for the upper one.
mount --bind "$folder/containerd" /var/lib/containerd
mount --bind "$folder/kubelet" /var/lib/kubelet
mount -t tmpfs tmpfs /run -o mode=755
mkdir -p /run/{containerd,cdi,lock,user}
# What stands for its hardware: the kernel's files, the driver root, NVML. Made anew with each boot.
rm -rf "$folder/hardware"
read -ra hardware <"$folder/hardware.args"
"$state/heddle/heddle" fake hardware "$folder/hardware" --name "node-$node" --address "$(node_address "$node")" "${hardware[@]}"
mkdir -p /run/hardware /run/nvidia/driver
mount --bind "$folder/hardware" /run/hardware
mount --bind "$folder/hardware/driver" /run/nvidia/driver
cp "$folder/hardware/cdi-etc/nvidia.json" /etc/cdi/
# The driver's files of the kernel, and a boot ID of this boot: the kernel has one for all nodes.
for file in devices driver sys/kernel/random/boot_id; do
  mount --bind "$folder/hardware/os/proc/$file" "/proc/$file"
done

cat >/etc/cni/net.d/10-testbed.conflist <<C
{"cniVersion": "1.0.0", "name": "testbed", "plugins": [
  {"type": "ptp", "ipMasq": false, "ipam": {"type": "host-local", "dataDir": "/run/cni-ipam",
   "ranges": [[{"subnet": "$pods.$node.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}}]}
C

mkdir -p /etc/containerd
# The kernel is in every container without being asked for; what stands for it is a mount.
"$programs/ctr" oci spec | python3 -c '
import json, sys
spec = json.load(sys.stdin)
place = "/run/hardware/os"
spec["mounts"].append({"destination": place, "type": "bind", "source": place, "options": ["rbind", "rw"]})
json.dump(spec, sys.stdout)' >/etc/containerd/base.json
cat >/etc/containerd/config.toml <<C
version = 3
root = "/var/lib/containerd"
state = "/run/containerd"
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = "localhost/pause:1"
[plugins.'io.containerd.cri.v1.runtime']
  # Where the machine withholds CAP_SYS_RESOURCE, the score cannot be lowered.
  restrict_oom_score_adj = true
[plugins.'io.containerd.cri.v1.runtime'.cni]
  bin_dirs = ["/usr/lib/cni"]
  conf_dir = "/etc/cni/net.d"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
  base_runtime_spec = "/etc/containerd/base.json"
C

# As systemd has it: mounts of the node reach containers, and theirs with Bidirectional each other.
mount --make-rshared /

cat >"$folder/kubelet.yaml" <<C
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
cgroupDriver: cgroupfs
cgroupRoot: /$cgroup/node-$node
failSwapOn: false
failCgroupV1: false
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
enforceNodeAllocatable: []
localStorageCapacityIsolation: false
evictionHard: {memory.available: "50Mi", nodefs.available: "1%", imagefs.available: "1%"}
nodeStatusUpdateFrequency: 5s
resolvConf: ""
# Nobody is there; pods that want none other are spared a warning.
clusterDNS: ["$services.10"]
C

PATH="$programs:$PATH" keep containerd containerd -c /etc/containerd/config.toml
wait_for 30 containerd test -S /run/containerd/containerd.sock
for image in "$state"/images/*.tar; do
  "$programs/ctr" -n k8s.io images import --local "$image" >/dev/null
done
keep kubelet "$programs/kubelet" --config="$folder/kubelet.yaml" --kubeconfig="$state/node-$node.kubeconfig" \
  --hostname-override="node-$node" --node-labels=nvidia.com/gpu.present=true --node-ip="$(node_address "$node")" --root-dir=/var/lib/kubelet
wait
