# shellcheck shell=bash disable=SC2034,SC2154
# Pods as people have them: several on a node, on one claim, with several containers, of Jobs and Deployments; and their ends.

# seen POD [CONTAINER]: numbers of the channels that the container sees, one a line.
seen() { kn exec "$1" ${2:+-c "$2"} -- sh -c 'cd /dev/nvidia-caps-imex-channels 2>/dev/null && ls' | sed 's/^channel//'; }
all_of() { is "$(kn get pods -l "app=$1" -o 'jsonpath={range .items[?(@.status.phase=="Running")]}{.metadata.name}{"\n"}{end}' | wc -l)" "$2"; }
names_of() { kn get pods -l "app=$1" -o 'jsonpath={range .items[*]}{.metadata.name}{"\n"}{end}'; }
# entered NODE: how many channels the node lists for ComputeDomains of the case's namespace.
entered() {
  local domains
  domains=$(kn get computedomains -o 'jsonpath={range .items[*]}{.metadata.uid}{"\n"}{end}')
  imexnode "$1" '{.status.channels}' | jq -r 'keys[]?' | grep -cFx -f <(echo "$domains") || true
}
nobody_has_entered() {
  local node
  for node in $(nodes); do is "$(entered "node-$node")" 0 || { echo "node-$node"; return 1; }; done
}

# workload KIND NAME NUMBER COMMAND: a Job or Deployment of pods with the channel of ComputeDomain `team`.
workload() {
  local kind=$1 name=$2 number=$3 command=$4
  case $kind in
    Job) printf -- '---\napiVersion: batch/v1\n' ;;
    Deployment) printf -- '---\napiVersion: apps/v1\n' ;;
  esac
  cat <<Y
kind: $kind
metadata: {name: $name}
spec:
Y
  case $kind in
    Job) printf '  parallelism: %s\n  completions: %s\n' "$number" "$number" ;;
    Deployment) printf '  replicas: %s\n  selector: {matchLabels: {app: %s}}\n' "$number" "$name" ;;
  esac
  cat <<Y
  template:
    metadata: {labels: {app: $name}}
    spec:
      $([ "$kind" != Job ] || echo 'restartPolicy: Never')
      terminationGracePeriodSeconds: 1
      containers:
      - name: worker
        image: $image
        command: $command
        resources: {claims: [{name: channel}]}
      resourceClaims:
      - {name: channel, resourceClaimTemplateName: team-channel}
Y
}

case_several_pods_of_one_domain_on_one_node() {
  { compute_domain team; for n in 1 2 3 4; do pod "p$n" team node-1; done; } | kn apply -f - >/dev/null
  eventually 60 "four running pods" running p1 p2 p3 p4
  local number n handle
  number=$(channel_by_api team)
  for n in 1 2 3 4; do equal "$(seen "p$n")" "$number" "channel of p$n"; done
  equal "$(entered node-1)" 1 "entries of node-1"
  handle=$(export_of p1)
  imports p4 "$handle" || fail "p4 cannot import what p1 has exported on the same node"
  # The others keep it when one goes, and the last one takes it along.
  kn delete pod p1 p2 p3 --wait=false >/dev/null
  eventually 60 "the end of p1" absent pod p1
  always 3 "p4 has its channel" is "$(seen p4)" "$number"
  equal "$(entered node-1)" 1 "entries of node-1 while a pod is there"
  kn delete pod p4 --wait=false >/dev/null
  eventually 60 "node-1 has left" nobody_has_entered
}

case_two_pods_on_one_claim() {
  compute_domain team Domain | kn apply -f - >/dev/null
  eventually 30 "the template" has_template team
  shared_claim shared team | kn apply -f - >/dev/null
  { pod_on_claim first shared; pod_on_claim second shared; } | kn apply -f - >/dev/null
  eventually 90 "two pods on one claim of an exclusive ComputeDomain" running first second
  equal "$(node_of first)" "$(node_of second)" "node of the pods of one claim"
  equal "$(seen first)" "$(seen second)" "channel of the pods of one claim"
  imports second "$(export_of first)" || fail "second cannot import what first has exported"
  kn delete pod first --wait=false >/dev/null
  eventually 60 "the end of first" absent pod first
  always 3 "second has its channel" seen second
  # One that comes later to a claim that is prepared.
  pod_on_claim third shared | kn apply -f - >/dev/null
  eventually 60 "a third pod on the claim" running third
  equal "$(seen third)" "$(seen second)" "channel of the third pod"
  kn delete pod second third --wait=false >/dev/null
  kn delete resourceclaim shared --wait=false >/dev/null
  eventually 60 "the end of the claim" absent resourceclaim shared
  eventually 60 "the node has left" nobody_has_entered
}

case_init_and_sidecar_containers_have_exactly_their_channel() {
  local look='cd /dev/nvidia-caps-imex-channels 2>/dev/null && ls >/seen/init || echo none >/seen/init'
  { compute_domain team; compute_domain other; } | kn apply -f - >/dev/null
  cat <<Y | kn apply -f - >/dev/null
apiVersion: v1
kind: Pod
metadata: {name: many}
spec:
  terminationGracePeriodSeconds: 1
  initContainers:
  - name: init
    image: $image
    command: [sh, -c, "$look"]
    resources: {claims: [{name: team}]}
    volumeMounts: [{name: seen, mountPath: /seen}]
  - name: sidecar
    image: $image
    restartPolicy: Always
    command: [sleep, infinity]
    resources: {claims: [{name: other}]}
  containers:
  - name: worker
    image: $image
    command: [sleep, infinity]
    resources: {claims: [{name: team}]}
    volumeMounts: [{name: seen, mountPath: /seen}]
  - name: plain
    image: $image
    command: [sleep, infinity]
  volumes: [{name: seen, emptyDir: {}}]
  resourceClaims:
  - {name: team, resourceClaimTemplateName: team-channel}
  - {name: other, resourceClaimTemplateName: other-channel}
Y
  eventually 60 "the pod with four containers" running many
  local team other
  team=$(channel_by_api team) other=$(channel_by_api other)
  [ "$team" != "$other" ] || fail "both ComputeDomains have channel $team"
  equal "$(kn exec many -c worker -- cat /seen/init)" "channel$team" "what the init container saw"
  equal "$(seen many worker)" "$team" "channel of the worker"
  equal "$(seen many sidecar)" "$other" "channel of the sidecar"
  equal "$(seen many plain || true)" "" "channels of the container without a claim"
}

finished() { is "$(kn get job "$1" -o 'jsonpath={.status.succeeded}')" "$2"; }

case_job_with_six_pods() {
  { compute_domain team; workload Job six 6 '[sh, -c, "cuda channel"]'; } | kn apply -f - >/dev/null
  eventually 120 "six pods that have ended well" finished six 6
  local pod number
  number=$(channel_by_api team)
  for pod in $(names_of six); do contains "$(kn logs "$pod")" ":$number\$" "what $pod had"; done
  # Pods that have ended hold nothing, though they are still there.
  eventually 60 "all nodes have left" nobody_has_entered
  equal "$(names_of six | wc -l)" 6 "pods of the Job"
}

case_deployment_scaled_up_and_down() {
  { compute_domain team; workload Deployment web 1 '[sleep, infinity]'; } | kn apply -f - >/dev/null
  eventually 60 "one pod" all_of web 1
  local number pod
  number=$(channel_by_api team)
  kn scale deployment web --replicas 6 >/dev/null
  eventually 90 "six pods" all_of web 6
  for pod in $(names_of web); do equal "$(seen "$pod")" "$number" "channel of $pod"; done
  kn scale deployment web --replicas 2 >/dev/null
  eventually 60 "two pods" all_of web 2
  eventually 60 "two claims" claims_are 2
  eventually 60 "status without the nodes that have left" only_their_nodes
  kn scale deployment web --replicas 0 >/dev/null
  eventually 60 "all nodes have left" nobody_has_entered
  # The status follows what the nodes say.
  eventually 30 "a ComputeDomain that is Ready without pods" ready team
  kn scale deployment web --replicas 1 >/dev/null
  eventually 60 "one pod again" all_of web 1
  equal "$(seen "$(names_of web)")" "$(channel_by_api team)" "channel of the last pod"
}
claims_are() { is "$(kn get resourceclaims -o name | wc -l)" "$1"; }
only_their_nodes() {
  is "$(kn get computedomain team -o 'jsonpath={.status.nodeCount}')" \
    "$(kn get pods -l app=web -o 'jsonpath={range .items[*]}{.spec.nodeName}{"\n"}{end}' | sort -u | wc -l)"
}

case_domain_is_deleted_first() {
  { compute_domain team; pod one team node-1; pod two team node-2; } | kn apply -f - >/dev/null
  eventually 60 "two running pods" running one two
  local number handle
  number=$(channel_by_api team)
  handle=$(export_of one)
  kn delete computedomain team --wait=false >/dev/null
  eventually 30 "whom the deletion waits for" waits_for_pods
  # What runs goes on.
  always 3 "the ComputeDomain waits for its pods" kn get computedomain team
  equal "$(seen one)" "$number" "channel of a pod whose ComputeDomain is being deleted"
  imports two "$handle" || fail "two cannot import any more"
  # Nothing new begins.
  pod late team node-3 | kn apply -f - >/dev/null
  always 3 "a late pod waits" is_pending late
  kn delete pod one two late --wait=false >/dev/null
  eventually 60 "the end of the ComputeDomain" absent computedomain team
  absent resourceclaimtemplate team-channel || fail "the template is left"
}
waits_for_pods() { condition team Ready message | grep -e one -e two -e claim; }

case_pods_are_deleted_first() {
  { compute_domain team; pod one team node-1; pod two team node-2; } | kn apply -f - >/dev/null
  eventually 60 "two running pods" running one two
  kn delete pod one two --wait=false >/dev/null
  eventually 60 "the end of the pods" absent pod one
  eventually 60 "all nodes have left" nobody_has_entered
  kn delete computedomain team --wait=false >/dev/null
  eventually 60 "the end of the ComputeDomain" absent computedomain team
}

case_a_namespace_is_deleted_as_a_whole() {
  { compute_domain team; compute_domain alone Domain; workload Deployment web 4 '[sleep, infinity]'; pod one alone; } | kn apply -f - >/dev/null
  eventually 90 "four pods" all_of web 4
  eventually 90 "the pod of the exclusive ComputeDomain" running one
  k delete namespace "$ns" --wait=false >/dev/null
  eventually 120 "the end of the namespace and of its channels" nothing_left "$ns"
}
