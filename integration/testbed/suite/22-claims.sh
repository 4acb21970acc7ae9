# shellcheck shell=bash disable=SC2034,SC2154,SC2016
# Claims that cannot be prepared or undone at first, and pods that share them. Rows of docs/cases.md.

# The daemon of a node hangs from its next start on, until it may go on.
hang_daemon() {
  local old
  undo+=("daemon_goes_on $1")
  scenario "$1" '{"hang_in": "INIT_GPU"}'
  old=$(daemon_of "$1")
  end_daemon "$1"
  eventually 60 "another daemon on node $1, that is not READY" hangs "$1" "$old"
}
hangs() {
  local now
  now=$(daemon_of "$1")
  [ -n "$now" ] && [ "$now" != "$2" ] && ! daemon_ready "$1"
}
# One that is READY has nothing to go on from, as where the case has let it.
daemon_goes_on() {
  scenario "$1"
  daemon_ready "$1" || end_daemon "$1"
  eventually 90 "a daemon on node $1 that is READY" daemon_ready "$1"
}

case_k11_a_prepare_that_hangs_is_answered_in_our_own_words() {
  domain green
  fresh_agent 1
  # The scheduler gives no slot of a node whose daemon is not READY: it has to fail between allocation and Prepare.
  stop_kubelet 1
  pod a green node-1 | kn apply -f - >/dev/null
  eventually 30 "a on its node" scheduled a
  hang_daemon 1
  start_kubelet 1
  # The kubelet itself would say DeadlineExceeded, after 45 s.
  eventually 120 "Heddle's words" event_says a 'NodePrepareResources failed for ResourceClaim.*not READY'
  ! event_says a DeadlineExceeded || fail "the kubelet's own deadline has passed"
  equal "$(phase a)" Pending "phase of a"
  daemon_goes_on 1
  eventually 180 "a running" running a
  channel_of a >/dev/null
}

case_k12_a_prepare_that_fails_and_then_succeeds_lets_the_pod_run() {
  domain green
  fresh_agent 1
  cdi_read_only 1
  pod a green node-1 | kn apply -f - >/dev/null
  eventually 120 "the reason in the pod's events" event_says a 'NodePrepareResources failed for ResourceClaim.*Read-only file system'
  calls_are_at_least 1 prepare 1 failed
  cdi_writable 1
  eventually 180 "a running" running a
  equal "$(cdi_files 1 | wc -l)" 1 "CDI files"
  channel_of a >/dev/null
  equal "$(imexnode node-1 '{.status.channels}' | grep -o '"channel"' | wc -l)" 1 "channels of node-1"
}

# The claim of a, as its name is made by the API server.
claim_of() { kn get pod "$1" -o "jsonpath={.status.resourceClaimStatuses[?(@.name=='$2')].resourceClaimName}"; }

case_k16_a_claim_is_answered_from_its_checkpoint_while_another_drivers_fails() {
  local claim
  domain green
  fresh_agent 1
  stop_kubelet 1
  with_gpu a green | kn apply -f - >/dev/null
  eventually 30 "a on its node" scheduled a
  # A GPU that is cut up by MIG is refused at once. The scheduler has not known.
  undo+=("mig 1 False")
  mig 1 True
  eventually 120 "the agent knows" offers_no_gpu 1
  start_kubelet 1
  eventually 120 "the GPU's refusal in the pod's events" event_says a 'NodePrepareResources failed.*MIG'
  # In which order the kubelet asks the drivers is chance.
  eventually 240 "a call for the channel" calls_are_at_least 1 prepare 1 'done'
  equal "$(phase a)" Pending "phase of a"
  mig 1 False
  eventually 180 "a running" running a
  calls_are_at_least 1 prepare 2 'done'
  claim=$(claim_of a channel)
  equal "$(grep -h "\"verb\":\"get\"" "$state/logs/audit.log" | grep "serviceaccount:heddle:heddle-agent\"" | grep -c "\"namespace\":\"$ns\",\"name\":\"$claim\"")" 1 "readings of the channel's claim by the agent"
}
# Whole GPUs are what is offered, and with MIG there is none.
offers_no_gpu() { is "$(k get resourceslices --field-selector "spec.nodeName=node-$1" -o "jsonpath={.items[?(@.spec.driver=='gpu.nvidia.com')].spec.devices[*].name}")" ''; }
mig() { nvml "$1" "for g in s['gpus']: g['mig'] = $2"; }
# with_gpu NAME DOMAIN: as pod, on node-1, with a GPU beside the channel.
with_gpu() {
  cat <<Y
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: one-gpu}
spec:
  spec:
    devices:
      requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com}}]
Y
  pod "$1" "$2" node-1 | sed 's/claims: \[{name: channel}\]/claims: [{name: channel}, {name: gpu}]/'
  echo "  - {name: gpu, resourceClaimTemplateName: one-gpu}"
}

case_k20_a_container_that_crashes_after_its_cdi_file_was_lost_starts_again() {
  local file channel
  domain green
  pod a green node-1 | run_pods a
  channel=$(channel_of a)
  file=$(cdi_files 1)
  testbed in 1 rm "$file"
  eventually 30 "the CDI file again" has_prepared 1 1
  equal "$(cdi_files 1)" "$file" "CDI file"
  signal 1 "$(processes 1 'sleep infinity')" KILL
  eventually 90 "a's container again" restarted a
  eventually 30 "its channel" sees_channel a "$channel"
}

case_k21_a_second_pod_on_a_prepared_claim_needs_no_call_and_the_last_one_ends_it() {
  local before channel
  domain green
  fresh_agent 1
  shared_claim shared green | kn apply -f - >/dev/null
  pod_on_claim a shared node-1 | run_pods a
  channel=$(channel_of a)
  before="$(calls 1 prepare) $(calls 1 unprepare)"
  pod_on_claim b shared node-1 | run_pods b
  equal "$(channel_of b)" "$channel" "channel of b"
  delete_pods a
  eventually 90 "the end of a" absent pod a
  equal "$(calls 1 prepare) $(calls 1 unprepare)" "$before" "calls of Prepare and Unprepare"
  has_prepared 1 1
  equal "$(channel_of b)" "$channel" "channel of b, alone"
  delete_pods b
  eventually 90 "the end of b" absent pod b
  eventually 30 "nothing prepared" has_nothing_prepared 1
}

case_k23_a_pod_that_is_forced_on_a_node_without_an_allocated_claim_never_runs() {
  local before
  domain green
  fresh_agent 1
  before=$(calls 1 prepare)
  # Named by the pod itself, so that no scheduler has looked.
  shared_claim shared green | kn apply -f - >/dev/null
  pod_on_claim a shared | sed 's/^spec:$/spec:\n  nodeName: node-1/' | kn apply -f - >/dev/null
  eventually 60 "the kubelet's word" event_says a 'not allowed to use ResourceClaim'
  always 15 "a waits" is_pending a
  equal "$(calls 1 prepare)" "$before" "calls of Prepare"
  has_nothing_prepared 1
}

case_k24_each_container_has_the_devices_of_its_own_claims() {
  domain green
  domain blue
  kn apply -f - >/dev/null <<Y
apiVersion: v1
kind: Pod
metadata: {name: both}
spec:
  terminationGracePeriodSeconds: 0
  nodeSelector: {kubernetes.io/hostname: node-1}
  containers:
  - {name: one, image: "$image", command: [sleep, infinity], resources: {claims: [{name: green}]}}
  - {name: two, image: "$image", command: [sleep, infinity], resources: {claims: [{name: blue}]}}
  - {name: three, image: "$image", command: [sleep, infinity]}
  resourceClaims:
  - {name: green, resourceClaimTemplateName: green-channel}
  - {name: blue, resourceClaimTemplateName: blue-channel}
Y
  eventually 180 "both running" running both
  eventually 30 "channel of green" has_channel_by_api green
  eventually 30 "channel of blue" has_channel_by_api blue
  equal "$(seen_by one)" "channel$(channel_by_api green)" "what one sees"
  equal "$(seen_by two)" "channel$(channel_by_api blue)" "what two sees"
  equal "$(seen_by three)" "" "what three sees"
}
has_channel_by_api() { [ -n "$(channel_by_api "$1")" ]; }
seen_by() { kn exec both -c "$1" -- sh -c 'if [ -d /dev/nvidia-caps-imex-channels ]; then ls /dev/nvidia-caps-imex-channels; fi'; }

case_k26_an_unprepare_that_fails_and_then_succeeds_lets_the_pod_end() {
  domain green
  fresh_agent 1
  pod a green node-1 | run_pods a
  cdi_read_only 1
  delete_pods a
  eventually 90 "a failed Unprepare" calls_are_at_least 1 unprepare 1 failed
  kn get pod a >/dev/null
  cdi_writable 1
  eventually 120 "the end of a" absent pod a
  has_nothing_prepared 1
}

case_k32_a_pod_that_is_deleted_by_force_is_unprepared() {
  domain green
  pod a green node-1 | run_pods a
  has_prepared 1 1
  kn delete pod a --grace-period=0 --force >/dev/null 2>&1
  eventually 90 "nothing prepared" has_nothing_prepared 1
}
