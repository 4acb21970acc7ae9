# shellcheck shell=bash disable=SC2034,SC2154
# The release of the chart: test, upgrade, rollback, uninstall, and who else's CRD is in the way. Each leaves Heddle installed.

crd=computedomains.resource.nvidia.com
foreign=$repository/core/tests/samples/crd/foreign.json

release() { helm -n heddle "$@"; }
# What a case has taken away comes back; what is there already is left alone.
installed() {
  if ! release status heddle 2>/dev/null | has 'STATUS: deployed' || ! k -n heddle get daemonset heddle-agent >/dev/null 2>&1; then
    testbed install --set crds.takeOver=true
  fi
}
daemons() { local node; for node in $(nodes); do echo "node-$node $(daemon_of "$node")"; done; }
restarts() { kn get pods -o 'jsonpath={range .items[*]}{.metadata.name} {.status.containerStatuses[0].restartCount}{"\n"}{end}'; }
pods_named() { k -n heddle get pods -l "app.kubernetes.io/component=$1" -o name | sort; }
no_heddle() { is "$(k -n heddle get pods -o name)" ""; }

# two_pods NAME: of one ComputeDomain on two nodes; they run.
two_pods() {
  { compute_domain "$1"; pod "$1-0" "$1" node-1; pod "$1-1" "$1" node-2; } | kn apply -f - >/dev/null
  eventually 90 "two pods of $1" running "$1-0" "$1-1"
}

case_helm_test_passes() {
  release test heddle --timeout 2m >/dev/null || fail "helm test fails"
  eventually 60 "the end of the test's ComputeDomain" absent computedomain heddle-test heddle
}

undo_upgrade() { release upgrade heddle "$repository/helm" -f "$suite/../values.yaml" --wait --timeout 3m; }
case_upgrade_and_rollback_touch_no_daemon_and_no_job() {
  local before agents handle pods
  undo+=(undo_upgrade)
  two_pods team
  before=$(daemons) agents=$(pods_named agent) pods=$(restarts)
  handle=$(export_of team-0)
  imports team-1 "$handle" || fail "no import before the upgrade"
  # What changes every component's pods, as a new release does.
  release upgrade heddle "$repository/helm" -f "$suite/../values.yaml" --set logFormat=text --wait --timeout 3m >/dev/null || fail "helm upgrade fails"
  # The last of the old ones ends when the last new one is ready.
  eventually 60 "an end of the agents of before the upgrade" all_new "$agents"
  as_before upgrade
  local said
  # Other names would be other DaemonSets.
  if said=$(release upgrade heddle "$repository/helm" -f "$suite/../values.yaml" --set fullnameOverride=other 2>&1); then fail "upgraded to another name"; fi
  contains "$said" 'by another name they would all end' "why another name is refused"
  pod after-upgrade team node-2 | kn apply -f - >/dev/null
  eventually 120 "a pod after the upgrade" running after-upgrade
  pods=$(restarts) agents=$(pods_named agent)
  release rollback heddle --wait --timeout 3m >/dev/null || fail "helm rollback fails"
  eventually 60 "an end of the agents of before the rollback" all_new "$agents"
  as_before rollback
  pod after-rollback team node-2 | kn apply -f - >/dev/null
  eventually 120 "a pod after the rollback" running after-rollback
}
# all_new AGENTS: none of these is there any more.
all_new() { is "$(comm -12 <(echo "$1") <(pods_named agent))" ""; }
# Of the caller's variables.
as_before() {
  equal "$(daemons)" "$before" "IMEX daemons, as process and start, after the $1"
  equal "$(restarts)" "$pods" "restarts of the pods after the $1"
  imports team-1 "$handle" || fail "what was exported before the $1 cannot be imported after it"
}

case_uninstall_is_refused_while_a_domain_lives() {
  local said before
  undo+=(installed)
  two_pods team
  before=$(daemons)
  if said=$(release uninstall heddle --timeout 2m 2>&1); then fail "uninstalled over a ComputeDomain that lives"; fi
  contains "$(k -n heddle logs job/heddle-uninstall)" "$ns/team" "what the job says is in use"
  # Helm itself takes it for half gone from here on, whatever the reason; docs/install.md says how that is undone.
  release rollback heddle "$(release history heddle -o json | jq '.[-1].revision')" --wait --timeout 3m >/dev/null || fail "the release cannot be had back: $said"
  release status heddle | has 'STATUS: deployed' || fail "the release is not as before: $said"
  equal "$(daemons)" "$before" "IMEX daemons"
  pod third team node-2 | kn apply -f - >/dev/null
  eventually 60 "a further pod" running third
}

nothing_in_use() { is "$(k get computedomains -A -o name)$(k get resourceclaims -A -o name)" ""; }
# uninstalled: takes the release away, once nothing is in use, and waits for its pods' end.
uninstalled() {
  eventually 90 "an end of what is in use" nothing_in_use
  release uninstall heddle --wait --timeout 3m >/dev/null || fail "uninstall is refused with nothing in use: $(k -n heddle logs job/heddle-uninstall 2>&1)"
  eventually 60 "the end of Heddle's pods" no_heddle
}

case_uninstall_and_install_again_over_what_it_left() {
  undo+=(installed)
  uninstalled
  k get crd "$crd" imexdomains.imex.heddle.dev imexnodes.imex.heddle.dev >/dev/null || fail "CRDs went with the release"
  equal "$(daemons | awk 'NF > 1')" "" "IMEX daemons after the uninstall"
  testbed install >/dev/null || fail "it cannot be installed over the CRDs that it left"
  eventually 90 "all daemons ready" all_ready
  two_pods team
  imports team-1 "$(export_of team-0)" || fail "no import after the second install"
}

# Removes what an uninstall leaves, as docs/install.md has it.
leave_nothing() {
  k get imexdomains -o name | xargs -I{} "$programs/kubectl" --kubeconfig "$state/admin.kubeconfig" patch {} --type=merge -p '{"metadata":{"finalizers":null}}' >/dev/null
  k delete imexnodes,imexdomains --all >/dev/null
  k delete crd "$crd" imexdomains.imex.heddle.dev imexnodes.imex.heddle.dev >/dev/null
}
theirs_is_served() { k apply --server-side --field-manager=gpu-operator -f "$foreign" >/dev/null && k wait --for=condition=Established "crd/$crd" --timeout=30s; }
# As a manifest for the other driver has it, which knows no isolationMode.
their_domain() { compute_domain "$1" | sed '/isolationMode/d'; }

case_domains_of_the_existing_driver_s_schema_are_taken_over() {
  local said uid
  undo+=(installed)
  uninstalled
  leave_nothing
  theirs_is_served
  { their_domain team; their_domain second; } | kn apply -f - >/dev/null
  uid=$(kn get computedomain team -o 'jsonpath={.metadata.uid}')
  # Without a word about it nothing is half used: the install stops, and says whose it is.
  if said=$(testbed install 2>&1); then fail "installed over another's CRD"; fi
  contains "$(k -n heddle logs job/heddle-crds 2>&1)" gpu-operator "what the job says of whose CRD it is"
  contains "$(k get crd "$crd" -o json --show-managed-fields)" gpu-operator "managers of the CRD"
  absent deployment heddle-controller heddle || fail "a controller runs beside another's CRD"
  testbed install --set crds.takeOver=true >/dev/null || fail "it cannot be installed with crds.takeOver"
  equal "$(kn get computedomain team -o 'jsonpath={.metadata.uid}')" "$uid" "UID of a ComputeDomain that was there before"
  equal "$(kn get computedomain team -o 'jsonpath={.spec.isolationMode}')" Channel "isolationMode that it has now"
  eventually 60 "its template" kn get resourceclaimtemplate team-channel
  eventually 90 "all daemons ready" all_ready
  { pod team-0 team node-1; pod team-1 team node-2; pod second-0 second node-1; } | kn apply -f - >/dev/null
  eventually 90 "their pods" running team-0 team-1 second-0
  imports team-1 "$(export_of team-0)" || fail "no import in a ComputeDomain that was there before"
  refused second-0 "$(export_of team-0)" || fail "the other ComputeDomain imports too"
  # And what is new is ours.
  { compute_domain alone Domain; pod alone alone node-3; } | kn apply -f - >/dev/null
  eventually 90 "an exclusive ComputeDomain" running alone
  contains "$(domain_of node-3)" '^exclusive-' "IMEX domain of node-3"
}
