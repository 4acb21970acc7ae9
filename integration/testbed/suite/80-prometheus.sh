# shellcheck shell=bash disable=SC2034,SC2154
# Debian's Prometheus looks at Heddle as the chart's PodMonitors and PrometheusRule say, and its alerts fire for what is broken.
# From the rule two things differ, so that a case need not last a quarter of an hour: what must hold `for` minutes must hold for 2 s
# here, and what is scraped is scraped every 3 s. Thresholds and the windows of rates are the chart's.

port=$((9190 + number))
monitoring() { helm template heddle "$repository/helm" --kube-version "$(k version -o json | jq -r .serverVersion.gitVersion)" -n heddle -f "$suite/../values.yaml" --set monitoring.prometheusRule.enabled=true -s templates/prometheusrule.yaml; }

# prometheus_up: starts it, with the chart's rules; it ends with the case.
prometheus_up() {
  command -v prometheus promtool >/dev/null || fail "no prometheus on PATH; on Debian: apt-get install prometheus"
  folder=$state/suite/prometheus
  rm -rf "$folder"
  mkdir -p "$folder"
  # What the operator hands to Prometheus is the rule's spec.
  monitoring | sed '1,/^spec:/d; s/^  //' >"$folder/chart.yaml"
  promtool check rules "$folder/chart.yaml" || fail "promtool does not like the chart's rules"
  sed -E 's/for: [0-9]+[mh]$/for: 2s/' "$folder/chart.yaml" >"$folder/rules.yaml"
  # Debian's knows no Kubernetes: the case says which pods there are, as a PodMonitor does.
  cat >"$folder/prometheus.yaml" <<Y
global: {scrape_interval: 3s, scrape_timeout: 3s, evaluation_interval: 1s}
rule_files: [rules.yaml]
scrape_configs:
- job_name: heddle
  file_sd_configs: [{files: [targets.json], refresh_interval: 5s}]
Y
  promtool check config "$folder/prometheus.yaml" >/dev/null || fail "promtool does not like the configuration"
  follow_targets &
  (cd "$folder" && exec prometheus --config.file=prometheus.yaml --storage.tsdb.path=data --web.listen-address="127.0.0.1:$port" --log.level=warn) \
    >"$folder/log" 2>&1 &
  eventually 60 "Prometheus" asked /-/ready
  # Every agent, every runner and both controllers.
  eventually 120 "all targets" value 'count(up == 1)' $((2 * $(cat "$state/nodes") + 2))
}
# Running pods with a port `metrics`, by the labels that a PodMonitor gives and the chart adds.
targets() {
  k -n heddle get pods -o json | jq '[.items[] | select(.status.phase == "Running") | . as $pod | .spec.containers[] | . as $container | .ports[]? |
    select(.name == "metrics") | {targets: ["\($pod.status.podIP):\(.containerPort)"], labels: {namespace: "heddle", pod: $pod.metadata.name,
      container: $container.name, node: $pod.spec.nodeName}}]'
}
follow_targets() {
  while :; do
    # A server that is not there for a moment has taken no pod away.
    if targets >"$folder/targets.new" 2>/dev/null; then mv "$folder/targets.new" "$folder/targets.json"; fi
    sleep 2
  done
}
asked() { curl -sf -m 5 "http://127.0.0.1:$port$1"; }
# query PROMQL: its samples, as `{labels} value` lines.
query() { curl -sf -m 5 -G --data-urlencode "query=$1" "http://127.0.0.1:$port/api/v1/query" | jq -r '.data.result[] | (.metric | tostring) + " " + .value[1]'; }
# value PROMQL NUMBER: whether its one sample is that.
value() { is "$(query "$1" | awk '{print $NF}')" "$2"; }
# holds PROMQL: whether a comparison holds for something.
holds() { query "$1" | grep . || { echo "not so: $1"; return 1; }; }
# firing ALERT [PATTERN]
firing() { asked /api/v1/alerts | jq -c ".data.alerts[] | select(.labels.alertname == \"$1\" and .state == \"firing\") | .labels" | grep -e "${2:-.}" || { echo "it fires: $(asked /api/v1/alerts | jq -c '[.data.alerts[] | .labels.alertname + " " + .state]')"; return 1; }; }
silent() { ! firing "$@" >/dev/null; }

case_every_component_s_metrics_are_clean_and_there() {
  local component address said node
  { compute_domain team; pod one team node-1; pod two team node-2; } | kn apply -f - >/dev/null
  eventually 60 "two running pods" running one two
  for component in agent controller imex; do
    for address in $(k -n heddle get pods -l "app.kubernetes.io/component=$component" -o json |
      jq -r '.items[] | .status.podIP + ":" + (.spec.containers[0].ports[] | select(.name == "metrics").containerPort | tostring)'); do
      said=$(curl -sf -m 5 "http://$address/metrics" | promtool check metrics 2>&1) || fail "promtool on $component at $address: $said"
    done
  done
  prometheus_up
  # What each actor shows without a line of its own.
  for component in agent controller; do
    for said in heddle_actor_mailbox_depth heddle_actor_message_seconds_count heddle_actor_queue_seconds_count heddle_actor_restarts_total \
      heddle_actor_last_progress_age_seconds; do
      holds "count by (namespace) ($said{pod=~\"heddle-$component-.*\"}) > 0" >/dev/null || fail "no $said of the $component"
    done
  done
  eventually 30 "actors that get on" value 'count(heddle_actor_last_progress_age_seconds > 30) or vector(0)' 0
  eventually 30 "mailboxes that are not full" value 'count(heddle_actor_mailbox_depth > 100) or vector(0)' 0
  # The domain's channels, alike by every member; the daemons; one leader.
  eventually 30 "one domain" value 'count(count by (domain) (heddle_imex_channels))' 1
  eventually 30 "2047 channels" value 'max(heddle_imex_channels)' 2047
  eventually 30 "channels in use" holds 'max(heddle_imex_channels_used) >= 1'
  eventually 30 "agreement about the channels in use" value 'max(heddle_imex_channels_used) - min(heddle_imex_channels_used)' 0
  eventually 30 "READY daemons by the agents" value 'sum(heddle_imex_daemon_ready)' "$(cat "$state/nodes")"
  eventually 30 "READY daemons by the runners" value 'sum(heddle_runner_daemon_state{state="READY"})' "$(cat "$state/nodes")"
  eventually 60 "peers by the runners" value 'min(heddle_runner_peers{connection="CONNECTED"})' $(($(cat "$state/nodes") - 1))
  holds 'min(heddle_runner_certificate_expiry_timestamp_seconds) - time() > 86400' >/dev/null || fail "certificates end within a day"
  value 'sum(heddle_leader)' 1 || fail "not one controller leads"
  value 'sum(heddle_channels_quarantined)' 0 || fail "a channel is in quarantine"
  # Prepares by result, with the whole call's time.
  for node in node-1 node-2; do
    holds "heddle_claim_seconds_count{node=\"$node\", driver=\"compute-domain.nvidia.com\", call=\"prepare\", outcome=\"done\"} >= 1" >/dev/null ||
      fail "no prepared claim of $node is counted"
  done
  holds 'sum(heddle_claim_seconds_sum{call="prepare", outcome="done"}) > 0' >/dev/null || fail "prepares take no time"
  # Of a healthy cluster nothing is said.
  always 5 "no alert fires" nothing_fires
}
nothing_fires() { is "$(asked /api/v1/alerts | jq -r '.data.alerts[] | select(.state == "firing") | .labels.alertname')" ""; }

heal_5() { scenario 5; end_daemon 5; eventually 60 "the daemon of node-5" daemon_ready 5; }
case_alert_for_a_daemon_that_is_not_ready() {
  prometheus_up
  silent HeddleDaemonNotReady || fail "it fires before anything is wrong"
  undo+=(heal_5)
  scenario 5 '{"hang_in": "WAITING_FOR_PEERS"}'
  end_daemon 5
  eventually 60 "the alert of node-5" firing HeddleDaemonNotReady '"node":"node-5"'
  silent HeddleDaemonNotReady '"node":"node-1"' || fail "it fires for a daemon that is READY"
  scenario 5
  end_daemon 5
  eventually 60 "its end" silent HeddleDaemonNotReady
}

# reborn NODE HARDWARE…: it is of that from now on.
reborn() {
  reboot "$@"
  node_again "$1"
}
as_it_was_5() { reborn 5 --clique "$clique.1" --major 4; }
case_alert_for_channels_that_are_nearly_used() {
  undo+=(as_it_was_5)
  # A clique of its own, with channels 1 and 2.
  reborn 5 --clique "$clique.2" --major 4 --channels 3
  prometheus_up
  silent HeddleChannelsNearlyUsed || fail "it fires before a channel is used"
  { for n in 1 2; do compute_domain "d$n"; pod "p$n" "d$n" node-5; done; } | kn apply -f - >/dev/null
  eventually 90 "two pods" running p1 p2
  eventually 60 "the alert of that domain" firing HeddleChannelsNearlyUsed "\"domain\":\"$(domain_of node-5)\""
  silent HeddleChannelsNearlyUsed "$(domain_of node-1)" || fail "it fires for the large domain"
  kn delete pod p1 p2 --wait=false >/dev/null
  kn delete computedomain d1 --wait=false >/dev/null
  eventually 90 "its end" silent HeddleChannelsNearlyUsed
}

quarantined() { value 'max(heddle_channels_quarantined)' "$1"; }
case_alert_for_a_quarantined_channel() {
  prometheus_up
  { compute_domain team; pod one team node-5; } | kn apply -f - >/dev/null
  eventually 60 "a pod on node-5" running one
  undo+=("node_again 5")
  power_off 5
  k delete node node-5 --wait=false >/dev/null
  kn delete pod one --force --grace-period=0 >/dev/null 2>&1
  kn delete computedomain team --wait=false >/dev/null
  eventually 90 "the end of the ComputeDomain, whose node is lost" absent computedomain team
  eventually 60 "one channel in quarantine" quarantined 1
  eventually 60 "the alert" firing HeddleChannelsQuarantined
  node_again 5
  eventually 150 "an end of the quarantine" quarantined 0
  eventually 60 "the alert's end" silent HeddleChannelsQuarantined
}

case_alert_for_actors_that_restart() {
  prometheus_up
  # No actor of a node can be made to fail again and again from outside, so the rule is given the series of one that does.
  eventually 30 "a series of each actor before its first failure" holds 'count by (pod, actor) (heddle_actor_restarts_total == 0) > 0'
  silent HeddleActorsRestart || fail "it fires where nothing restarts"
  cat >"$folder/test.yaml" <<Y
rule_files: [chart.yaml]
evaluation_interval: 1m
tests:
- interval: 1m
  input_series:
  - {series: 'heddle_actor_restarts_total{pod="p", actor="NodeLink", cause="panic"}', values: '0 0 0+1x10'}
  - {series: 'heddle_actor_restarts_total{pod="p", actor="DraServer", cause="panic"}', values: '0 0 1+0x10'}
  alert_rule_test:
  - alertname: HeddleActorsRestart
    eval_time: 10m
    exp_alerts:
    - exp_labels: {severity: warning, pod: p, actor: NodeLink}
      exp_annotations: {summary: NodeLink in p fails again and again, description: Its log says why.}
Y
  promtool test rules "$folder/test.yaml" || fail "the rule does not fire for an actor that restarts"
}

heal_4() { scenario 4; }
case_alert_for_slow_prepares() {
  prometheus_up
  silent HeddlePrepareSlow || fail "it fires before anything is slow"
  undo+=(heal_4)
  # A daemon that takes 8 s to start, where an exclusive ComputeDomain waits for one of its own.
  scenario 4 '{"delay_ms": {"INIT_GPU": 8000}}'
  { compute_domain slow Domain; pod late slow node-4; } | kn apply -f - >/dev/null
  eventually 120 "the pod that had to wait" running late
  eventually 60 "the alert" firing HeddlePrepareSlow '"driver":"compute-domain.nvidia.com"'
}
