# shellcheck shell=bash disable=SC2034,SC2154,SC2016
# The agent goes and comes, is updated, or is not there. Rows of docs/cases.md.

# The agent's sockets on node 1, each with its inode and when that was changed: the number of a removed one is soon another's.
sockets() { testbed in 1 sh -c 'stat -c "%i-%.9Z %n" /var/lib/kubelet/plugins_registry/*.sock /var/lib/kubelet/plugins/*.nvidia.com/*.sock 2>/dev/null | sort -k2'; }
has_sockets() { is "$(sockets | wc -l)" 4; }
no_socket_is_of() { ! sockets | grep "$1"; }
# The same names as before, and no socket of before.
has_replaced() {
  local now
  now=$(sockets)
  is "$(awk '{print $2}' <<<"$now")" "$(awk '{print $2}' <<<"$1")" || return 1
  ! grep -Fxf <(awk '{print $1}' <<<"$1") <(awk '{print $1}' <<<"$now")
}

case_k2_a_restarted_agent_replaces_its_sockets_and_is_called() {
  local before uid
  domain green
  fresh_agent 1
  eventually 30 "four sockets" has_sockets
  before=$(sockets)
  restart_agent 1
  eventually 30 "sockets of the same names" has_replaced "$before"
  pod a green node-1 | run_pods a
  # Another pod has sockets of its own, and leaves none of the old one.
  uid=$(k -n heddle get pod "$(agent_on node-1)" -o 'jsonpath={.metadata.uid}')
  k -n heddle delete pod "$(agent_on node-1)" --wait=false >/dev/null
  eventually 90 "another agent" has_fresh_agent 1
  eventually 30 "the end of the old sockets" no_socket_is_of "$uid"
  has_sockets
  pod b green node-1 | run_pods b
}

# What the kubelet asks for lies at a path that is too long for a socket.
case_k8_a_socket_whose_path_would_be_too_long_has_a_shorter_name() {
  local folder
  folder=/var/lib/kubelet/plugins/$(printf 'of-a-long-name-%.0s' 1 2)
  undo+=(rollback)
  helm -n heddle upgrade heddle "$repository/helm" --reuse-values --set "kubeletPlugin.kubeletPluginsDirectoryPath=$folder" >/dev/null
  k -n heddle rollout status daemonset heddle-agent --timeout=300s >/dev/null
  eventually 30 "one socket" is_in_long_folder "$folder"
  domain green
  pod a green node-1 | run_pods a
  channel_of a >/dev/null
  delete_pods a
  eventually 90 "the end of a" absent pod a
}
is_in_long_folder() {
  local path
  path=$(testbed in 1 find "$1/compute-domain.nvidia.com" -name '*.sock')
  ((${#path} <= 107)) || { echo "$path is too long"; return 1; }
  [[ $path =~ \.sock$ && ! $path =~ dra-[0-9a-f]{8}- ]] || { echo "found '$path'"; return 1; }
}
rollback() {
  helm -n heddle rollback heddle >/dev/null
  k -n heddle rollout status daemonset heddle-agent --timeout=300s >/dev/null
  eventually 120 "all agents" all_agents_serve
  eventually 120 "all daemons" all_ready
}

case_k35_a_pod_made_without_the_driver_runs_when_it_is_there() {
  domain green
  no_agent 1
  # The slices stay for a while, so that the scheduler knows no better.
  pod a green node-1 | kn apply -f - >/dev/null
  eventually 60 "the reason that a waits for" waits_for_driver a
  always 5 "a waits" is_pending a
  agents_everywhere
  eventually 180 "a running" running a
  channel_of a >/dev/null
}
waits_for_driver() { events_of "$1" | grep -e 'compute-domain.nvidia.com is not registered' -e 'cannot allocate all claims'; }

case_k36_pods_wait_for_a_driver_that_was_removed_and_the_check_warns_before() {
  local said
  domain green
  pod a green node-1 | run_pods a
  # What the hook before `helm uninstall` runs.
  if said=$(heddle uninstall-check 2>&1); then fail "the check has passed: $said"; fi
  contains "$said" "$ns/green" "the check's words"
  contains "$said" "$ns/$(kn get resourceclaims -o 'jsonpath={.items[0].metadata.name}')" "the check's words"
  no_agent 1
  delete_pods a
  always 15 "a is there" kn get pod a
  has_prepared 1 1
  agents_everywhere
  eventually 120 "the end of a" absent pod a
  has_nothing_prepared 1
}

case_k38_a_short_gap_leaves_slices_untouched() {
  local before
  fresh_agent 1
  before=$(all_of_slices)
  restart_agent 1
  equal "$(all_of_slices)" "$before" "slices"
  domain green
  pod a green node-1 | run_pods a
  equal "$(all_of_slices)" "$before" "slices"
}
all_of_slices() { k get resourceslices --field-selector spec.nodeName=node-1 -o json --show-managed-fields; }

# A rolling update with pods coming and going. Issue 7, 4: no Prepare lost, daemons and jobs untouched.
case_k40_a_rolling_update_loses_no_prepare_and_touches_no_job() {
  local node daemons slices=() round=0 handle failed
  eventually 180 "all agents" all_agents_serve
  domain green
  { pod exporter green node-1; pod importer green node-2; } | run_pods exporter importer
  handle=$(export_of exporter)
  hold importer "$handle"
  failed=$(failed_prepares)
  for node in 1 2 3; do daemons+="$(daemon_of "$node") "; slices+=("$(slices "$node")"); done
  undo+=(rollback)
  helm -n heddle upgrade heddle "$repository/helm" --reuse-values --set-string kubeletPlugin.podAnnotations.suite="$ns" >/dev/null
  until rolled_out; do
    ((++round < 60)) || fail "the update does not end"
    for node in 1 2 3; do pod "p$node-$round" green "node-$node"; done | run_pods "p1-$round" "p2-$round" "p3-$round"
    delete_pods "p1-$round" "p2-$round" "p3-$round"
  done
  for node in 1 2 3; do pod "last-$node" green "node-$node"; done | run_pods last-1 last-2 last-3
  equal "$(failed_prepares)" "$failed" "failed Prepares"
  for node in 1 2 3; do equal "$(slices "$node")" "${slices[node - 1]}" "slices of node $node"; done
  equal "$(for node in 1 2 3; do printf '%s ' "$(daemon_of "$node")"; done)" "$daemons" "IMEX daemons"
  still_holds importer
}
rolled_out() { k -n heddle rollout status daemonset heddle-agent --watch=false | grep 'successfully rolled out'; }

case_k41_the_old_agent_serves_on_while_the_new_one_dies() {
  local node old
  eventually 180 "all agents" all_agents_serve
  domain green
  undo+=(undo_update)
  # More than there can be: it ends when it has read that.
  k -n heddle set env daemonset/heddle-agent HEDDLE_SLOTS=999 >/dev/null
  eventually 120 "a node whose new agent has ended" ended_on
  node=$(ended_on)
  old=$(agent "$node")
  pod a green "node-$node" | run_pods a
  equal "$(failed_prepares)" "" "failed Prepares"
  equal "$(agent "$node")" "$old" "the old agent"
}
ended_on() {
  local node
  node=$(k -n heddle get pods -l app.kubernetes.io/component=agent -o 'jsonpath={range .items[?(@.status.containerStatuses[0].restartCount>0)]}{.spec.nodeName} {.status.containerStatuses[0].ready}{"\n"}{end}' | sed -n 's/^node-\(.*\) false$/\1/p' | first)
  [ -n "$node" ] && echo "$node"
}

case_k41_an_update_that_is_never_ready_is_taken_back_and_the_old_agent_serves_on() {
  local node old
  eventually 180 "all agents" all_agents_serve
  domain green
  undo+=(undo_update)
  # Nobody answers where the probes ask.
  k -n heddle set env daemonset/heddle-agent HEDDLE_HEALTH_ADDRESS=127.0.0.1:51999 >/dev/null
  eventually 120 "a node with two agents" two_agents
  node=$(two_agents)
  eventually 60 "the new agent's sockets" has_two_registrations "$node"
  old=$(agents "$node" | sort -n | first)
  k -n heddle rollout undo daemonset heddle-agent >/dev/null
  pod a green "node-$node" | run_pods a
  eventually 120 "all agents" all_agents_serve
  equal "$(agent "$node")" "$old" "the old agent"
}
two_agents() {
  local node
  for node in $(nodes); do
    if [ "$(agents "$node" | wc -l)" = 2 ]; then echo "$node"; return; fi
  done
  return 1
}
has_two_registrations() { is "$(testbed in "$1" sh -c 'ls /var/lib/kubelet/plugins_registry' | grep -c '^compute-domain.nvidia.com-.*-reg.sock')" 2; }
undo_update() {
  k -n heddle set env daemonset/heddle-agent HEDDLE_SLOTS=16 HEDDLE_HEALTH_ADDRESS=0.0.0.0:51515 >/dev/null
  k -n heddle rollout status daemonset heddle-agent --timeout=300s >/dev/null
  eventually 120 "all agents" all_agents_serve
}

# Sockets as dead pods leave them, and one whose agent lives.
case_k43_sockets_of_dead_agents_are_removed_and_no_others() {
  local dead=11111111-2222-4333-8444-555555555555 living=99999999-2222-4333-8444-555555555555
  domain green
  fresh_agent 1
  undo+=(remove_sockets)
  testbed in 1 python3 -c '
import os, socket, sys, time
def listen(uid):
    for path in (f"/var/lib/kubelet/plugins_registry/compute-domain.nvidia.com-{uid}-reg.sock", f"/var/lib/kubelet/plugins/compute-domain.nvidia.com/dra-{uid}.sock"):
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(path)
        listening.listen()
        yield listening
for one in list(listen(sys.argv[1])): one.close()
kept = list(listen(sys.argv[2]))
time.sleep(300)' "$dead" "$living" &
  eventually 30 "the sockets" eight_sockets
  restart_agent 1
  eventually 30 "the end of the dead one's sockets" no_socket_is_of "$dead"
  equal "$(sockets | grep -c "$living")" 2 "sockets of the living one"
  pod a green node-1 | run_pods a
  equal "$(sockets | grep -c "$living")" 2 "sockets of the living one"
}
eight_sockets() { is "$(sockets | wc -l)" 8; }
remove_sockets() { testbed in 1 sh -c 'rm -f /var/lib/kubelet/plugins_registry/*-2222-4333-8444-555555555555-reg.sock /var/lib/kubelet/plugins/*/dra-*-2222-4333-8444-555555555555.sock'; }
