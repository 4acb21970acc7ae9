# shellcheck shell=bash disable=SC2034,SC2154,SC2016
# Nodes are lost, and are not all of one clique. Reboots are in 23-devices.sh.

lists() { heddle channel list "${@:2}" | grep -e "$1"; }
lists_not() { ! lists "$@"; }

case_a_node_lost_for_good_holds_up_no_deletion_and_its_channel_can_be_released() {
  local channel
  domain green
  { pod a green node-4; pod b green node-5; } | run_pods a b
  channel=$(channel_of a)
  undo+=("node_again 5")
  power_off 5
  k delete node node-5 --wait=false >/dev/null
  kn delete pod b --grace-period=0 --force >/dev/null 2>&1 || true
  # It goes on elsewhere.
  pod c green node-1 | run_pods c
  equal "$(channel_of c)" "$channel" "channel of c"
  delete_pods a c
  kn delete computedomain green --wait=false >/dev/null
  eventually 120 "the end of green" absent computedomain green
  eventually 60 "the quarantine" lists "$ns/green.*node-5" --quarantined
  domain blue
  pod d blue node-4 | run_pods d
  [ "$(channel_of d)" != "$channel" ] || fail "the channel was given again"
  # Its Lease goes with the Node.
  eventually 120 "the release" heddle channel release --node node-5
  eventually 60 "the end of the quarantine" lists_not "$ns/green"
  eventually 60 "the end of the IMEXNode" absent imexnode node-5
  # It was not lost after all.
  node_again 5
  pod e blue node-5 | run_pods e
  equal "$(channel_of e)" "$(channel_of d)" "channel of e"
}
cliques_again() {
  testbed hardware 3 --clique "$clique.1" --major 4
  testbed hardware 5 --clique "$clique.1" --major 4
  power_off 3
  power_off 5
  power_on 3
  power_on 5
  eventually 120 "all daemons" all_ready
}
is_in_clique() { is "$(imexnode "node-$1" '{.status.clique}')" "$2"; }

case_each_clique_has_channels_of_its_own_and_a_node_without_nvlink_none() {
  local one two
  domain green
  undo+=(cliques_again)
  testbed hardware 3 --clique "$clique.2" --major 4
  testbed hardware 5 --major 4
  power_off 3
  power_off 5
  power_on 3
  power_on 5
  eventually 120 "node-3 in the other clique" is_in_clique 3 "$clique.2"
  eventually 120 "node-5 in none" is_in_clique 5 ''
  eventually 120 "the daemon of node 3" daemon_ready 3
  # Numbers begin anew in the other clique; here a ComputeDomain of this clique alone takes one before.
  domain blue
  { pod before-1 blue node-1; pod before-2 blue node-2; } | run_pods before-1 before-2
  { pod a green node-1; pod b green node-2; pod c green node-3; pod d green node-5; } | run_pods a b c d
  one=$(channel_of a) two=$(channel_of c)
  equal "$(channel_of b)" "$one" "channel of b"
  [ "$one" != "$two" ] || fail "both cliques have channel $one"
  equal "$(domain_of node-1)" "$(domain_of node-2)" "IMEX domain of the clique"
  [ "$(domain_of node-1)" != "$(domain_of node-3)" ] || fail "both cliques have one IMEX domain"
  equal "$(kn get computedomain green -o "jsonpath={range .status.cliques[*]}{.clique}={.channel} {end}" | tr ' ' '\n' | grep "$clique" | sort | tr '\n' ' ')" \
    "$clique.1=$one $clique.2=$two " "cliques of green"
  equal "$(kn exec d -- sh -c 'echo "$HEDDLE_IMEX_CHANNEL"; ls /dev/nvidia-caps-imex-channels 2>/dev/null || true')" none "what d sees"
  imports b "$(export_of a)" || fail "b cannot import what a has exported"
  refused c "$(export_of b)" || fail "c has memory of another clique"
}
