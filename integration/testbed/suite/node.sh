# shellcheck shell=bash disable=SC2034,SC2154,SC2016
# What cases do with the processes and files of a node, which is a number. Sourced by lib.sh.

# processes NODE COMMANDLINE: ids of its processes of exactly that command line, as the node counts them.
processes() {
  testbed in "$1" sh -c 'for p in /proc/[0-9]*; do
      if [ "$( (tr "\0" " " <$p/cmdline) 2>/dev/null)" = "$1 " ]; then echo "${p#/proc/}"; fi
    done' sh "$2"
}
agents() { processes "$1" '/usr/bin/heddle agent'; }
# agent NODE: the id of the node's one agent.
agent() {
  local found
  found=$(agents "$1")
  [[ $found =~ ^[0-9]+$ ]] || { echo "node $1 has as agents: '$found'"; return 1; }
  echo "$found"
}
# signal NODE PROCESS SIGNAL
signal() { testbed in "$1" kill "-$3" "$2"; }

# An agent's pod is there alone, and answers the kubelet's probe.
agent_serves() {
  agent "$1" >/dev/null || return 1
  is "$(k -n heddle get pods -l app.kubernetes.io/component=agent --field-selector "spec.nodeName=node-$1" -o 'jsonpath={range .items[*]}{.status.phase}{.status.containerStatuses[0].ready}{.metadata.deletionTimestamp} {end}')" 'Runningtrue '
}
all_agents_serve() {
  local node
  for node in $(nodes); do agent_serves "$node" || { echo "node $node"; return 1; }; done
}
restarts_of_agent() { k -n heddle get pod "$(agent_on "node-$1")" -o 'jsonpath={.status.containerStatuses[0].restartCount}'; }

# fresh_agent NODE: an agent whose container has not been restarted yet. The kubelet waits longer from restart to restart.
fresh_agent() {
  eventually 120 "the agent of node $1" agent_serves "$1"
  [ "$(restarts_of_agent "$1")" != 0 ] || return 0
  k -n heddle delete pod "$(agent_on "node-$1")" --wait=false >/dev/null
  eventually 120 "a new agent of node $1" has_fresh_agent "$1"
}
has_fresh_agent() { agent_serves "$1" && is "$(restarts_of_agent "$1")" 0; }

# kill_agent NODE: as the kernel does when memory is short. The kubelet starts it again.
kill_agent() {
  local old
  fresh_agent "$1"
  old=$(agent "$1")
  signal "$1" "$old" KILL
  eventually 30 "the end of the agent of node $1" agent_is_not "$1" "$old"
}
agent_is_not() { ! agents "$1" | has -x "$2"; }
restart_agent() {
  kill_agent "$1"
  eventually 120 "the agent of node $1 again" agent_was_restarted "$1"
}
agent_was_restarted() { agent_serves "$1" && ! is "$(restarts_of_agent "$1")" 0 >/dev/null; }

# hang_agent NODE: it stands still until wake_agent, also when the case fails. Its probes may miss it for 45 s.
hang_agent() {
  fresh_agent "$1"
  hung=("$1" "$(agent "$1")")
  undo+=(wake_agent)
  signal "${hung[@]}" STOP
}
wake_agent() {
  ((${#hung[@]})) || return 0
  signal "${hung[@]}" CONT
  hung=()
}
hung=()

# no_agent NODE…: their agents go, and no others do, until agents_everywhere.
no_agent() {
  local node
  k label --overwrite nodes --all heddle-suite/agent=yes >/dev/null
  undo+=(agents_everywhere)
  # OnDelete: where it may stay it is not touched.
  k -n heddle patch daemonset heddle-agent --type merge \
    -p '{"spec": {"updateStrategy": {"type": "OnDelete", "rollingUpdate": null}, "template": {"spec": {"nodeSelector": {"heddle-suite/agent": "yes"}}}}}' >/dev/null
  for node in "$@"; do k label --overwrite node "node-$node" heddle-suite/agent=no >/dev/null; done
  for node in "$@"; do eventually 60 "the end of the agent of node $node" has_no_agent "$node"; done
}
has_no_agent() { is "$(agents "$1")" ''; }
agents_everywhere() {
  k label --overwrite nodes --all heddle-suite/agent=yes >/dev/null
  k -n heddle patch daemonset heddle-agent --type merge -p '{"spec": {"template": {"spec": {"nodeSelector": {"heddle-suite/agent": null}}}}}' >/dev/null
  eventually 180 "all agents" all_agents_serve
  # Those that came in between are of the older template.
  k -n heddle patch daemonset heddle-agent --type merge \
    -p '{"spec": {"updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": 0}}}}' >/dev/null
  k -n heddle rollout status daemonset heddle-agent --timeout=300s >/dev/null
  k label nodes --all heddle-suite/agent- >/dev/null
}

# restart NODE UNIT [SIGNAL]
restart() {
  testbed stop "$1" "$2" "${3:--TERM}"
  testbed start "$1" "$2"
}
# stop_kubelet NODE: until start_kubelet, also when the case fails.
stop_kubelet() {
  undo+=("start_kubelet $1")
  testbed stop "$1" kubelet "${2:--TERM}"
}
start_kubelet() { testbed start "$1" kubelet; }

# log_of NODE UNIT: its log from now on is what `said` looks at.
watch_log() {
  log=$state/node-$1/logs/$2.log
  log_from=$(stat -c %s "$log")
}
# said PATTERN
said() { tail -c "+$((log_from + 1))" "$log" | has -e "$1"; }

# counted NODE PATTERN: sum of the agent's series whose name and labels match.
counted() {
  k get --raw "/api/v1/namespaces/heddle/pods/$(agent_on "node-$1"):8080/proxy/metrics" |
    awk -v pattern="$2" '!/^#/ && $0 ~ pattern { sum += $NF } END { print sum + 0 }'
}
# calls NODE prepare|unprepare [done|failed]: of the kubelet to the driver of channels, since the agent's start.
calls() { counted "$1" "^heddle_claim_seconds_count.*driver=\"compute-domain.nvidia.com\",call=\"$2\",outcome=\"${3:-}"; }
calls_are_at_least() { (($(calls "$1" "$2" "${4:-}") >= $3)); }

# cdi_files NODE: the claims' CDI files; checkpoints NODE: of channels.
cdi_files() { testbed in "$1" find /run/cdi -name '*.json' -type f; }
checkpoints() { testbed in "$1" find /var/lib/kubelet/plugins/compute-domain.nvidia.com/state/claims/compute-domain.nvidia.com -type f; }
has_nothing_prepared() { is "$(cdi_files "$1"; checkpoints "$1")" ''; }
has_prepared() { is "$(cdi_files "$1" | wc -l)" "$2"; }

# slices NODE [DRIVER]: name, resourceVersion and generation.
slices() { k get resourceslices --field-selector "spec.nodeName=node-$1" -o "jsonpath={range .items[?(@.spec.driver=='${2:-compute-domain.nvidia.com}')]}{.metadata.name} {.metadata.resourceVersion} {.spec.pool.generation}{'\n'}{end}"; }
slices_are() { is "$(slices "$1")" "$2"; }

# cdi_read_only NODE: nothing can be written to the CDI folder by the agent that runs now, until cdi_writable.
cdi_read_only() {
  undo+=("cdi_writable $1")
  in_agents_mounts "$1" 'mount -N "$1" --bind "$folder" "$folder" && mount -N "$1" -o remount,bind,ro "$folder"'
}
cdi_writable() { in_agents_mounts "$1" 'umount -N "$1" "$folder"'; }
# $1 is the agent's process, $folder the CDI folder as it sees it.
in_agents_mounts() { testbed in "$1" sh -c 'folder=$(tr "\0" "\n" <"/proc/$1/environ" | sed -n "s/^HEDDLE_CDI_DIR=//p"); '"$2" sh "$(agent "$1")"; }

# shared_claim NAME DOMAIN: manifest of a claim of the domain that several pods use.
shared_claim() {
  kn get resourceclaimtemplate "$2-channel" -o json | python3 -c '
import json, sys
template = json.load(sys.stdin)["spec"]
meta = template.get("metadata", {}) | {"name": sys.argv[1]}
json.dump({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": meta, "spec": template["spec"]}, sys.stdout)' "$1"
}
has_template() { kn get resourceclaimtemplate "$1-channel"; }

# events_of POD: what is said of it, each with its reason.
events_of() { kn get events --field-selector "involvedObject.name=$1" -o 'jsonpath={range .items[*]}{.reason}: {.message}{"\n"}{end}'; }
event_says() { events_of "$1" | grep -e "$2"; }
failed_prepares() { kn get events --field-selector reason=FailedPrepareDynamicResources -o 'jsonpath={range .items[*]}{.involvedObject.name} {.count}: {.message}{"\n"}{end}'; }
scheduled() { [ -n "$(node_of "$1")" ]; }
restarted() { is "$(kn get pod "$1" -o 'jsonpath={.status.containerStatuses[0].restartCount} {.status.containerStatuses[0].state.running.startedAt}' | sed 's/ ..*/ yes/')" "${2:-1} yes"; }
delete_pods() { kn delete pod "$@" --grace-period=1 --wait=false >/dev/null; }
# sees_channel POD NUMBER
sees_channel() { is "$(channel_of "$1")" "$2"; }
# domain NAME [MODE]: makes it and waits until claims can be made of it.
domain() {
  compute_domain "$@" | kn apply -f - >/dev/null
  eventually 30 "the template of $1" has_template "$1"
}
# run_pods MANIFEST…: applies what it is given on standard input, and waits until the pods named run.
run_pods() {
  kn apply -f - >/dev/null
  eventually 180 "running: $*" running "$@"
}
# hold POD HANDLE: a process in the pod imports the memory and looks each second whether it is there; still_holds POD
hold() {
  kn exec "$1" -- sh -c '(while sleep 1; do echo; done | cuda hold "$1" >/held 2>&1) </dev/null >/dev/null 2>&1 &' sh "$2"
  eventually 30 "memory that $1 holds" looks "$1" 1
}
looks() { (($(kn exec "$1" -- cat /held | grep -c held) >= $2)); }
still_holds() {
  local looked
  looked=$(kn exec "$1" -- cat /held | grep -c held)
  eventually 30 "another look of $1" looks "$1" $((looked + 1))
  ! kn exec "$1" -- cat /held | grep -v -e '^held$' -e '^imported$' || fail "$1 has lost its memory"
}

# scenario NODE [JSON]: what goes wrong in the node's daemon from its next start; without JSON nothing.
scenario() {
  local file=$state/node-$1/hardware/os/imex/scenario.json
  mkdir -p "$(dirname "$file")"
  if [ -n "${2:-}" ]; then echo "$2" >"$file.new" && mv "$file.new" "$file"; else rm -f "$file"; fi
}
# end_daemon NODE: the runner starts it again.
end_daemon() {
  local daemon
  daemon=$(daemon_of "$1")
  [ -z "$daemon" ] || signal "$1" "${daemon%% *}" KILL
}
# nvml NODE PYTHON: changes what the fake NVML says; s is the scenario.
nvml() {
  python3 -c '
import json, os, sys
place = sys.argv[1]
s = json.load(open(place))
exec(sys.argv[2])
json.dump(s, open(place + ".new", "w"))
os.rename(place + ".new", place)' "$state/node-$1/hardware/nvml.json" "$2"
}

# reboot NODE HARDWARE…: off, and on with that hardware; until its pods of Heddle's are there again.
reboot() {
  testbed hardware "$@"
  power_off "$1"
  power_on "$1"
}
power_off() {
  testbed power-off "$1"
  eventually 30 "the end of node $1" is_off "$1"
}
is_off() { ! testbed in "$1" true; }
power_on() {
  testbed power-on "$1"
  # A kubelet whose Node was deleted takes its time.
  eventually 300 "the node" node_is_ready "$1"
  eventually 240 "the agent of node $1" agent_serves "$1"
}
# node_again NODE: if it is off; until all of it is as before.
node_again() {
  if is_off "$1"; then power_on "$1"; fi
  eventually 240 "the agent of node $1" agent_serves "$1"
  eventually 120 "the daemon of node $1, of this boot" daemon_of_this_boot "$1"
}
boot_of() { cat "$state/node-$1/hardware/os/proc/sys/kernel/random/boot_id"; }
daemon_of_this_boot() { is "$(imexnode "node-$1" '{.status.bootID}')" "$(boot_of "$1")" && daemon_ready "$1"; }
node_is_ready() { is "$(k get node "node-$1" -o 'jsonpath={.status.conditions[?(@.type=="Ready")].status}')" True; }
started_at() { kn get pod "$1" -o 'jsonpath={.status.containerStatuses[0].state.running.startedAt}'; }
started_after() {
  local now
  now=$(started_at "$1")
  [[ $now > $2 ]] || { echo "it runs since '$now'"; return 1; }
}
