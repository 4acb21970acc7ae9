# shellcheck shell=bash disable=SC2034,SC2154,SC2016
# The kubelet goes and comes; the driver is there. Rows of docs/cases.md.

case_k1_a_restarted_kubelet_knows_the_driver_again() {
  domain green
  restart 1 kubelet
  pod a green node-1 | run_pods a
  channel_of a >/dev/null
}

case_k3_a_registration_that_nobody_answers_is_made_good() {
  local restarts
  domain green
  fresh_agent 1
  # The kubelet that comes has not counted any probes yet.
  stop_kubelet 1
  hang_agent 1
  watch_log 1 kubelet
  start_kubelet 1
  eventually 60 "the kubelet's complaint" said 'RegisterPlugin error'
  wake_agent
  pod a green node-1 | run_pods a
  equal "$(restarts_of_agent 1)" 0 "restarts of the agent"
}

# Connections of the kubelet to the agent's service socket: accepted ones, in the network namespace of who has dialled.
# A socket has in there the name that it was bound under, and the agent binds before it gives a socket its name.
connections() { testbed in "$1" awk '$6 == "03" && $8 ~ "plugins/compute-domain.nvidia.com/"' /proc/net/unix | wc -l; }
has_one_connection() { is "$(connections 1)" 1; }

case_k6_one_connection_is_used_before_and_after_it_dropped() {
  domain green
  fresh_agent 1
  pod a green node-1 | run_pods a
  eventually 10 "one connection of the kubelet" has_one_connection
  restart_agent 1
  pod b green node-1 | run_pods b
  delete_pods a
  eventually 60 "the end of a" absent pod a
  eventually 30 "one connection of the kubelet again" has_one_connection
  always 5 "one connection" has_one_connection
}

registrations() { k -n heddle logs "$(agent_on node-1)" | grep -c 'registered with the kubelet.*'"$1"; }
has_registered() { (($(registrations "$1") > $2)); }

case_k7_the_kubelets_own_dial_is_answered() {
  local driver before
  declare -A before
  fresh_agent 1
  for driver in compute-domain.nvidia.com gpu.nvidia.com; do before[$driver]=$(registrations "$driver"); done
  watch_log 1 kubelet
  restart 1 kubelet
  for driver in compute-domain.nvidia.com gpu.nvidia.com; do
    eventually 60 "another registration of $driver" has_registered "$driver" "${before[$driver]}"
  done
  ! said 'RegisterPlugin error' || fail "the kubelet complains: $(tail -c "+$((log_from + 1))" "$log" | grep 'RegisterPlugin error' | first)"
}

case_k18_running_pods_hear_nothing_of_a_restarted_kubelet() {
  local before daemon
  domain green
  fresh_agent 1
  { pod a green node-1; pod b green node-1; } | run_pods a b
  before="$(calls 1 prepare) $(calls 1 unprepare) $(channel_of a)"
  daemon=$(daemon_of 1)
  restart 1 kubelet
  # It is there again when it runs what is new.
  pod c green node-1 | run_pods c
  equal "$(($(calls 1 prepare) - 1)) $(calls 1 unprepare) $(channel_of a)" "$before" "calls, and the channel of a"
  equal "$(daemon_of 1)" "$daemon" "the IMEX daemon"
  equal "$(kn get pods a b -o 'jsonpath={.items[*].status.containerStatuses[0].restartCount}')" "0 0" "restarts"
}

case_k27_an_unprepare_that_the_kubelet_was_cut_off_in_is_repeated() {
  domain green
  pod a green node-1 | run_pods a
  hang_agent 1
  delete_pods a
  # The container is gone and the claim is not: the kubelet waits for the agent.
  eventually 30 "the end of a's container" container_ended a
  has_prepared 1 1
  stop_kubelet 1 -KILL
  wake_agent
  start_kubelet 1
  eventually 120 "the end of a" absent pod a
  has_nothing_prepared 1
  pod b green node-1 | run_pods b
}
container_ended() { is "$(processes 1 'sleep infinity')" ''; }

case_k28_what_went_while_the_kubelet_was_down_is_unprepared() {
  local before
  domain green
  fresh_agent 1
  { pod a green node-1; pod b green node-1; } | run_pods a b
  before=$(calls 1 prepare)
  stop_kubelet 1
  delete_pods a
  # The other one has no object any more.
  kn delete pod b --grace-period=0 --force >/dev/null 2>&1
  start_kubelet 1
  eventually 60 "the end of a" absent pod a
  eventually 90 "nothing of a and b on the node" has_nothing_prepared 1
  equal "$(calls 1 prepare)" "$before" "calls of Prepare"
}

# The kubelet deletes a node's slices when it starts, and when no instance of the driver has been there for 30 s.
case_k37_slices_that_the_kubelet_has_wiped_are_published_again() {
  local before
  eventually 30 "slices" has_slices 1
  before=$(slices 1)
  restart 1 kubelet
  eventually 60 "new slices after the kubelet's start" has_new_slices "$before"
  before=$(slices 1)
  no_agent 1
  eventually 120 "the kubelet's deletion of the slices" slices_are 1 ''
  agents_everywhere
  eventually 60 "slices of the new agent" has_new_slices "$before"
  domain green
  pod a green node-1 | run_pods a
}
has_slices() { [ -n "$(slices "$1")" ] && [ -n "$(slices "$1" gpu.nvidia.com)" ]; }
# Others than before, of no lower generation.
has_new_slices() {
  local now
  has_slices 1 || return 1
  now=$(slices 1)
  [ "${now%% *}" != "${1%% *}" ] || return 1
  ((${now##* } >= ${1##* })) || { echo "generation ${now##* } after ${1##* }"; return 1; }
}
