# shellcheck shell=bash disable=SC2034,SC2154
# The picture of the README, by its own manifests.

# Number of the channel node, and that its container cannot open another one.
sees_one_channel() {
  local namespace=$1 pod=$2 domain=$3 number other
  number=$(channel_of "$pod" "$namespace")
  equal "$number" "$(channel_by_api "$domain" "$namespace")" "channel of $pod"
  contains "$(k -n "$namespace" exec "$pod" -- cuda channel)" ":$number\$" "channel that $pod can open"
  # The device cgroup, and not only that the node is missing: root in the container may make nodes.
  other=$((number == 1 ? 2 : 1))
  k -n "$namespace" exec "$pod" -- sh -c "
    major=\$(sed -n 's/ nvidia-caps-imex-channels//p' /run/hardware/os/proc/devices)
    mknod /tmp-channel c \$major $other && ! (: </tmp-channel) 2>/tmp-said && cat /tmp-said" >"$state/suite/mknod"
  contains "$(cat "$state/suite/mknod")" 'Operation not permitted' "opening channel $other in $pod"
}

pods_of() { k -n "$1" get pods -o 'jsonpath={range .items[*]}{.metadata.name}{"\n"}{end}'; }

case_green_blue_yellow_share_nodes_and_nobody_imports_across() {
  local name pod other handle domains=(green blue yellow)
  apply_manifests "${domains[@]}"
  for name in "${domains[@]}"; do
    eventually 40 "two running pods of $name" all_running "$name" 2
    eventually 10 "$name ready" ready "$name" "$name"
  done
  # Three of two pods on three nodes: somebody shares each node.
  equal "$(k get pods -A -l '!app.kubernetes.io/name' -o 'jsonpath={range .items[*]}{.spec.nodeName}{"\n"}{end}' | sort | uniq -c | awk '{print $1}' | sort -u)" 2 "pods on each of the shared nodes"
  equal "$(for name in "${domains[@]}"; do channel_by_api "$name" "$name"; echo; done | sort -u | wc -l)" 3 "different channels"
  for name in "${domains[@]}"; do
    for pod in $(pods_of "$name"); do sees_one_channel "$name" "$pod" "$name"; done
  done
  for name in "${domains[@]}"; do
    handle=$(export_of "$(pods_of "$name" | first)" "$name")
    for other in "${domains[@]}"; do
      for pod in $(pods_of "$other"); do
        if [ "$other" = "$name" ]; then
          imports "$pod" "$handle" "$other" || fail "$pod cannot import what $name has exported"
        else
          refused "$pod" "$handle" "$other" || fail "$pod has memory of $name"
        fi
      done
    done
  done
}

case_red_has_nodes_of_its_own_and_gives_them_back() {
  apply_manifests red
  eventually 60 "two running pods of red" all_running red 2
  eventually 10 "red ready" ready red red
  equal "$(domain_of node-4)" "$(domain_of node-5)" "IMEX domain of red's nodes"
  contains "$(domain_of node-4)" '^exclusive-' "IMEX domain of red's nodes"
  contains "$(domain_of node-1)" '^shared-' "IMEX domain of a node that is not red's"
  apply_manifests orange
  eventually 30 "the scheduler's word on orange" orange_is_told
  always 5 "orange waits" orange_is Pending
  # A second exclusive one cannot have a node that the first has.
  { compute_domain second Domain; pod second second node-4; } | kn apply -f - >/dev/null
  eventually 30 "the scheduler's word on the second one" second_is_told
  k delete namespace red --wait=false >/dev/null
  k -n red delete pods --all --grace-period=1 --wait=false >/dev/null
  # Both wanted node-4: one has it now.
  eventually 60 "orange or the second one on node-4" one_of_them_runs
  eventually 30 "node-5 back in the shared domain" node_is_shared node-5
}

orange_is() { is "$(k -n orange get pod orange-0 -o 'jsonpath={.status.phase}')" "$1"; }
orange_is_told() { told orange orange-0; }
second_is_told() { told "$ns" second; }
told() {
  k -n "$1" get pod "$2" -o 'jsonpath={.status.conditions[?(@.type=="PodScheduled")].message}' | grep 'cannot allocate all claims'
}
one_of_them_runs() { [ "$(phase second)" = Running ] || orange_is Running; }
node_is_shared() { domain_of "$1" | has '^shared-' && daemon_ready "${1#node-}"; }
