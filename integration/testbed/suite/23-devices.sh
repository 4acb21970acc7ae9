# shellcheck shell=bash disable=SC2034,SC2154,SC2016
# What is behind the devices changes: boot, health, taints, the runtime. Rows of docs/cases.md.

# What stands for the kernel's files of a node says another major after the reboot.
case_k19_after_a_reboot_pods_have_their_channel_and_the_new_major() {
  local channel started handle
  domain green
  { pod a green node-1; pod b green node-2; } | run_pods a b
  channel=$(channel_of a)
  equal "$(kn exec a -- cuda channel)" "4:$channel" "channel that a can open"
  started=$(started_at a)
  undo+=("reboot 1 --clique $clique.1 --major 4")
  # 7 is a terminal for minors from 1 to 63: it exists, and can be opened.
  reboot 1 --clique "$clique.1" --major 7
  eventually 240 "a's container of this boot" started_after a "$started"
  eventually 60 "its channel of the new major" opens a "7:$channel"
  equal "$(channel_of a)" "$channel" "what a sees"
  equal "$(kn get pod a -o 'jsonpath={.status.phase}')" Running "phase of a"
  equal "$(kn exec b -- cuda channel)" "4:$channel" "channel that b can open"
  eventually 120 "the daemon of node 1" daemon_ready 1
  handle=$(export_of a)
  eventually 60 "b imports what a has exported since" imports b "$handle"
}
opens() { is "$(kn exec "$1" -- cuda channel)" "$2"; }

case_k19_a_claim_prepared_before_the_kubelets_restart_is_verified_and_given_again() {
  local channel
  domain green
  fresh_agent 1
  shared_claim shared green | kn apply -f - >/dev/null
  pod_on_claim a shared node-1 | run_pods a
  channel=$(channel_of a)
  stop_kubelet 1
  # Neither the kubelet nor the agent's watcher is there to see it.
  hang_agent 1
  testbed in 1 sh -c 'rm /run/cdi/*.json'
  wake_agent
  start_kubelet 1
  pod_on_claim b shared node-1 | run_pods b
  equal "$(channel_of b)" "$channel" "channel of b"
  equal "$(cdi_files 1 | wc -l)" 1 "CDI files"
}

# health POD CLAIM: of its first device, by the kubelet.
health() { kn get pod "$1" -o "jsonpath={.status.containerStatuses[0].allocatedResourcesStatus[?(@.name=='claim:$2')].resources[0].health}"; }
health_is() { is "$(health "$1" "$2")" "$3"; }
gpus_are_well() { nvml 1 'for g in s["gpus"]: g["recovery_action"] = 0'; }

case_k45_the_pods_status_follows_the_health_of_its_devices() {
  domain green
  fresh_agent 1
  kn apply -f - >/dev/null <<Y
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: gpus}
spec:
  spec:
    devices:
      requests: [{name: gpus, exactly: {deviceClassName: gpu.nvidia.com, allocationMode: All}}]
Y
  { pod a green node-1 | sed 's/claims: \[{name: channel}\]/claims: [{name: channel}, {name: gpus}]/'
    echo "  - {name: gpus, resourceClaimTemplateName: gpus}"; } | run_pods a
  eventually 60 "a healthy GPU" health_is a gpus Healthy
  eventually 30 "a healthy slot" health_is a channel Healthy
  undo+=(gpus_are_well)
  # An XID for which the driver wants a reset, on each.
  nvml 1 '
last = max([e["sequence"] for e in s.get("events", [])], default=0)
for i, g in enumerate(s["gpus"]): g["recovery_action"] = 1
s["events"] = [{"sequence": last + 1 + i, "gpu": i, "kind": 8, "data": 79} for i in range(len(s["gpus"]))]'
  eventually 60 "an unhealthy GPU" health_is a gpus Unhealthy
  gpus_are_well
  eventually 60 "a GPU that is well again" health_is a gpus Healthy
  # The stream ends with the agent, and begins with the next one.
  restart_agent 1
  eventually 90 "health by the next agent" health_is a gpus Healthy
  no_agent 1
  eventually 180 "no word of the GPU" health_is a gpus Unknown
  agents_everywhere
  eventually 120 "health again" health_is a gpus Healthy
  equal "$(kn get pod a -o 'jsonpath={.status.containerStatuses[0].restartCount}')" 0 "restarts of a"
}

case_k47_a_taint_evicts_the_pod_and_its_claim_is_unprepared() {
  local slot
  if ! k get devicetaintrules >/dev/null 2>&1; then
    say "this Kubernetes has no DeviceTaintRule"
    return
  fi
  domain green
  { pod a green node-1; pod b green node-2; } | run_pods a b
  slot=$(kn get resourceclaims -o "jsonpath={range .items[?(@.status.reservedFor[0].name=='a')]}{.status.allocation.devices.results[0].device}{end}")
  undo+=(no_taint)
  k apply -f - >/dev/null <<Y
apiVersion: resource.k8s.io/v1beta2
kind: DeviceTaintRule
metadata: {name: suite}
spec:
  deviceSelector: {driver: compute-domain.nvidia.com, pool: node-1, device: $slot}
  taint: {key: suite.heddle.dev/out, effect: NoExecute}
Y
  eventually 120 "the end of a" absent pod a
  eventually 60 "nothing of it on the node" has_nothing_prepared 1
  equal "$(phase b)" Running "phase of b"
  # Other slots of the node are as good.
  pod c green node-1 | run_pods c
}
no_taint() { k delete devicetaintrule suite; }

case_k49_with_cdi_switched_off_nothing_starts_without_its_device() {
  local config=/etc/containerd/config.toml
  domain green
  undo+=(cdi_on)
  testbed in 5 sed -i "/^\[plugins.'io.containerd.cri.v1.runtime'\]/a enable_cdi = false" $config
  testbed in 5 grep -q 'enable_cdi = false' $config
  restart 5 containerd
  fresh_agent 5
  # It looks at its start, and now and then.
  restart_agent 5
  eventually 60 "the node's preflight" preflight_says 5 'CDI'
  pod a green node-5 | kn apply -f - >/dev/null
  eventually 120 "the runtime's word" event_says a 'CDI'
  always 10 "a does not run" runs_not a
  cdi_on
  eventually 180 "a running" running a
}
preflight_says() { imexnode "node-$1" "{.status.conditions[?(@.type=='Preflight')].message}" | grep -e "$2"; }
runs_not() { ! running "$1" >/dev/null; }
cdi_on() {
  testbed in 5 grep -q '^enable_cdi = false$' /etc/containerd/config.toml || return 0
  testbed in 5 sed -i '/^enable_cdi = false$/d' /etc/containerd/config.toml
  restart 5 containerd
}
