# shellcheck shell=bash disable=SC2034,SC2154,SC2016
# Parts of the cluster end or are away for a while; what runs goes on, what begins waits or works.

case_an_agent_killed_while_pods_come_loses_none_of_them() {
  local daemon handle names=() i
  domain green
  fresh_agent 1
  { pod exporter green node-2; pod importer green node-1; } | run_pods exporter importer
  handle=$(export_of exporter)
  hold importer "$handle"
  daemon=$(daemon_of 1)
  for i in 1 2 3 4 5 6; do names+=("p$i"); pod "p$i" green node-1; done | kn apply -f - >/dev/null
  names=(p1 p2 p3 p4 p5 p6)
  signal 1 "$(agent 1)" KILL
  eventually 180 "running: ${names[*]}" running "${names[@]}"
  for i in "${names[@]}"; do equal "$(channel_of "$i")" "$(channel_of importer)" "channel of $i"; done
  equal "$(daemon_of 1)" "$daemon" "the IMEX daemon"
  still_holds importer
  # And while they go.
  delete_pods "${names[@]}"
  signal 1 "$(agents 1 | first)" KILL
  for i in "${names[@]}"; do eventually 120 "the end of $i" absent pod "$i"; done
  eventually 60 "one claim left on the node" has_prepared 1 1
  still_holds importer
}

runners() { processes "$1" '/usr/bin/heddle imex-runner'; }
daemon_is_silent() { imexnode node-1 '{.status.daemon.state}: {.status.daemon.message}' | grep -v READY; }

case_a_runner_that_hangs_is_told_and_its_daemon_goes_on() {
  local daemon handle runner
  domain green
  { pod exporter green node-2; pod importer green node-1; } | run_pods exporter importer
  handle=$(export_of exporter)
  hold importer "$handle"
  daemon=$(daemon_of 1)
  runner=$(runners 1)
  [[ $runner =~ ^[0-9]+$ ]] || fail "node 1 has as runners: '$runner'"
  undo+=("signal 1 $runner CONT")
  signal 1 "$runner" STOP
  eventually 60 "word that nothing is known of the daemon" daemon_is_silent
  pod late green node-1 | kn apply -f - >/dev/null
  always 5 "late waits" is_pending late
  still_holds importer
  signal 1 "$runner" CONT
  eventually 60 "late" running late
  equal "$(runners 1) $(daemon_of 1)" "$runner $daemon" "runner and daemon"
  still_holds importer
}

label_again() { k label --overwrite node node-4 nvidia.com/gpu.present=true >/dev/null && eventually 120 "the agent of node 4" agent_serves 4; }
is_daemon() { is "$(daemon_of "$1")" "$2"; }
has_no_agent() { is "$(agents "$1")" ""; }
refused_deletions() { k -n heddle get events --field-selector reason=FailedDelete -o 'jsonpath={.items[*].message}' | grep -e "$1"; }

case_a_node_that_loses_its_label_loses_no_daemon_and_no_job() {
  local daemon
  domain green
  { pod exporter green node-2; pod importer green node-4; } | run_pods exporter importer
  hold importer "$(export_of exporter)"
  daemon=$(daemon_of 4)
  undo+=(label_again)
  k label node node-4 nvidia.com/gpu.present- >/dev/null
  eventually 90 "the end of its agent" has_no_agent 4
  eventually 60 "an Event that tells of the daemon" refused_deletions 'jobs would end with it'
  # A kubelet that begins anew looks whether its pods may be here.
  stop_kubelet 4
  start_kubelet 4
  eventually 60 "the kubelet" node_is_ready 4
  always 10 "the daemon goes on" is_daemon 4 "$daemon"
  still_holds importer
  label_again
  pod late green node-4 | run_pods late
  equal "$(daemon_of 4)" "$daemon" "the IMEX daemon, with the label again"
  still_holds importer
  # Who has drained the node may end it.
  delete_pods exporter importer late
  k -n heddle delete pods -l app.kubernetes.io/component=imex --field-selector spec.nodeName=node-4 >/dev/null
  eventually 90 "the daemon of node 4" daemon_ready 4
  [ "$(daemon_of 4)" != "$daemon" ] || fail "the daemon of the deleted pod goes on"
}

leader() { k -n heddle get lease heddle-controller -o 'jsonpath={.spec.holderIdentity}'; }
leads_no_longer() {
  local now
  now=$(leader)
  [ -n "$now" ] && [ "$now" != "$1" ]
}
controllers() { processes "$1" '/usr/bin/heddle controller'; }

case_another_controller_leads_when_the_leader_was_killed() {
  local old node pod
  old=$(leader)
  pod=${old%_*}
  node=$(node_of "$pod" heddle)
  signal "${node#node-}" "$(controllers "${node#node-}")" KILL
  eventually 120 "another leader than $old" leads_no_longer "$old"
  domain green
  { pod a green node-1; pod b green node-2; } | run_pods a b
  eventually 60 "green Ready" ready green
  equal "$(channel_of a)" "$(channel_of b)" "channels"
}

case_without_a_controller_claims_are_prepared_and_undone() {
  local channel
  domain green
  pod a green node-1 | run_pods a
  channel=$(channel_of a)
  undo+=(controllers_again)
  k -n heddle scale deployment heddle-controller --replicas=0 >/dev/null
  eventually 90 "the end of the controllers" no_controller
  # Also on a node that is new to it.
  { pod b green node-1; pod c green node-2; } | run_pods b c
  equal "$(channel_of b) $(channel_of c)" "$channel $channel" "channels"
  delete_pods c
  eventually 90 "the end of c" absent pod c
  eventually 30 "nothing on node 2" has_nothing_prepared 2
  # What only a controller does waits for one.
  compute_domain blue | kn apply -f - >/dev/null
  always 5 "blue has no template" absent resourceclaimtemplate blue-channel
  controllers_again
  eventually 60 "blue's template" has_template blue
  kn delete computedomain green --wait=false >/dev/null
  delete_pods a b
  eventually 120 "the end of green" absent computedomain green
}
no_controller() { is "$(k -n heddle get pods -l app.kubernetes.io/component=controller -o name)" ''; }
controllers_again() {
  k -n heddle scale deployment heddle-controller --replicas=2 >/dev/null
  k -n heddle rollout status deployment heddle-controller --timeout=120s >/dev/null
}

case_a_restarted_containerd_disturbs_nothing() {
  local handle daemon channel
  domain green
  { pod a green node-1; pod b green node-2; } | run_pods a b
  handle=$(export_of b)
  hold a "$handle"
  daemon=$(daemon_of 1) channel=$(channel_of a)
  restart 1 containerd
  pod c green node-1 | run_pods c
  equal "$(channel_of c)" "$channel" "channel of c"
  equal "$(daemon_of 1)" "$daemon" "the IMEX daemon"
  equal "$(kn get pod a -o 'jsonpath={.status.containerStatuses[0].restartCount}')" 0 "restarts of a"
  still_holds a
  delete_pods c
  eventually 120 "the end of c" absent pod c
  eventually 30 "one claim left" has_prepared 1 1
}

api_is_there() { k get --raw /readyz; }
start_api() {
  testbed start 0 kube-apiserver
  eventually 120 "the API server" api_is_there
}
# What the one container of the suite on node 1 sees, without asking the API.
sees_by_node() { is "$(testbed in 1 ls "/proc/$1/root/dev/nvidia-caps-imex-channels")" "channel$2"; }

case_a_minute_without_the_api_server_is_survived() {
  local channel process daemons
  domain green
  { pod a green node-1; pod b green node-2; } | run_pods a b
  hold a "$(export_of b)"
  channel=$(channel_of a)
  process=$(processes 1 'sleep infinity')
  daemons="$(daemon_of 1) $(daemon_of 2)"
  undo+=(start_api)
  testbed stop 0 kube-apiserver -KILL
  # Others than the agent restores what is lost.
  testbed in 1 sh -c 'rm /run/cdi/*.json'
  eventually 30 "the CDI file again" has_prepared 1 1
  always 60 "a's channel" sees_by_node "$process" "$channel"
  equal "$(daemon_of 1) $(daemon_of 2)" "$daemons" "IMEX daemons"
  start_api
  eventually 120 "the nodes" nodes_are_ready
  still_holds a
  equal "$(kn get pods -o 'jsonpath={.items[*].status.containerStatuses[0].restartCount}')" "0 0" "restarts"
  delete_pods a
  eventually 120 "the end of a" absent pod a
  eventually 30 "nothing on node 1" has_nothing_prepared 1
  domain blue
  pod c blue node-1 | run_pods c
}
nodes_are_ready() {
  local node
  for node in $(nodes); do node_is_ready "$node" || return 1; done
}

# Those who watched from an older version than etcd has are told so, and list anew.
case_after_a_compaction_of_etcd_watches_begin_anew() {
  domain green
  pod a green node-1 | run_pods a
  undo+=(start_api)
  testbed stop 0 kube-apiserver -KILL
  testbed in 0 python3 -c '
import json, urllib.request
def call(path, **body):
    return json.load(urllib.request.urlopen("http://127.0.0.1:2379/v3/" + path, json.dumps(body).encode()))
for _ in range(200):
    last = call("kv/put", key="c3VpdGU=", value="eA==")
call("kv/deleterange", key="c3VpdGU=")
call("kv/compaction", revision=last["header"]["revision"], physical=True)'
  start_api
  domain blue
  { pod b blue node-1; pod c green node-2; } | run_pods b c
  eventually 60 "blue Ready" ready blue
  equal "$(channel_of c)" "$(channel_of a)" "channel of c"
  kn delete computedomain green --wait=false >/dev/null
  delete_pods a c
  eventually 120 "the end of green" absent computedomain green
}
