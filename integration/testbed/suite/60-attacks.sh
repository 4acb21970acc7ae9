# shellcheck shell=bash disable=SC2034,SC2154
# What a tenant, a stolen agent token and a stranger on the network try, and are refused.

# forged_claim NAME UID [LABEL] [COMPUTEDOMAIN]: a claim by hand whose config names a ComputeDomain by UID.
forged_claim() {
  cat <<Y
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata:
  name: $1
  labels: {resource.nvidia.com/computeDomain: "${3:-$2}"}
spec:
  devices:
    requests:
    - {name: channel, exactly: {deviceClassName: compute-domain-default-channel.nvidia.com}}
    config:
    - requests: [channel]
      opaque:
        driver: compute-domain.nvidia.com
        parameters: {apiVersion: resource.nvidia.com/v1beta1, kind: ComputeDomainChannelConfig, domainID: "$2", allocationMode: Single, computeDomain: ${4:-theirs}}
Y
}
uid_of() { k -n "${2:-$ns}" get computedomain "$1" -o 'jsonpath={.metadata.uid}'; }
entries_of() { k get imexnodes -o json | jq -r '.items[].status.channels // {} | keys[]' | grep -cFx "$1" || true; }

# Another team's namespace, with a ComputeDomain that runs, and an exclusive one without pods.
another_team() {
  theirs=$ns-x
  create_namespace "$theirs"
  { compute_domain theirs; pod victim theirs node-1; compute_domain vault Domain; } | k -n "$theirs" apply -f - >/dev/null
  eventually 60 "the other team's pod" victim_runs
  eventually 30 "the exclusive template" k -n "$theirs" get resourceclaimtemplate vault-channel
}
victim_runs() { is "$(k -n "$theirs" get pod victim -o 'jsonpath={.status.phase}')" Running; }

case_claims_that_name_another_team_s_domain() {
  another_team
  local uid vault own node
  uid=$(uid_of theirs "$theirs") vault=$(uid_of vault "$theirs")
  compute_domain mine | kn apply -f - >/dev/null
  own=$(uid_of mine)
  {
    # Theirs, by its UID and name. One's own name with their UID. A UID of nobody, and no UID at all.
    forged_claim stolen "$uid"; pod_on_claim stolen stolen node-1
    forged_claim mixed "$uid" "$uid" mine; pod_on_claim mixed mixed node-1
    forged_claim guessed 11111111-2222-4333-8444-555555555555; pod_on_claim guessed guessed node-1
    forged_claim malformed ../../../etc/passwd none; pod_on_claim malformed malformed node-2
    # One's own, with the label of their exclusive one, by which a controller moves nodes.
    forged_claim labelled "$own" "$vault" mine; pod_on_claim labelled labelled node-3
  } | kn apply -f - >/dev/null
  eventually 60 "refusal of a claim on another team's ComputeDomain" event_says stolen 'NamespaceMismatch\|ComputeDomainGone'
  eventually 60 "refusal of one's own name with another team's UID" event_says mixed 'InvalidConfig\|ComputeDomainGone\|NamespaceMismatch'
  eventually 60 "refusal of a UID that nobody has" event_says guessed ComputeDomainGone
  eventually 60 "refusal of what is no UID" event_says malformed InvalidConfig
  eventually 60 "the pod whose claim is its own" running labelled
  local pod
  for pod in stolen mixed guessed malformed; do always 2 "$pod does not run" is_pending "$pod"; done
  equal "$(entries_of "$uid")" 1 "nodes with the other team's channel"
  [ "$(channel_of labelled)" != "$(channel_by_api theirs "$theirs")" ] || fail "a forged label gives the other team's channel"
  contains "$(domain_of node-3)" '^shared-' "IMEX domain of the node with a forged label"
  contains "$(imexnode node-3 '{.spec.domain}')" '^shared-' "IMEX domain that the node is to serve"
  equal "$(k -n "$theirs" get computedomain vault -o 'jsonpath={.status.nodeCount}')" 0 "nodes of the exclusive ComputeDomain"
  # Claims of others hold up nobody's deletion.
  k -n "$theirs" delete computedomain vault --wait=false >/dev/null
  eventually 60 "the end of the exclusive ComputeDomain" absent computedomain vault "$theirs"
}

case_a_template_of_another_namespace_is_nobody_s() {
  another_team
  # By its name there is none here; by a copy of what it says the claim is refused.
  pod named theirs node-1 | kn apply -f - >/dev/null
  k -n "$theirs" get resourceclaimtemplate theirs-channel -o json |
    jq '{apiVersion, kind, metadata: {name: "copy-channel", labels: .metadata.labels}, spec}' | kn apply -f - >/dev/null
  pod copied copy node-1 | kn apply -f - >/dev/null
  eventually 30 "what is said of a template that is not here" event_says named 'not found'
  eventually 60 "refusal of the copy" event_says copied 'NamespaceMismatch\|ComputeDomainGone'
  always 3 "copied does not run" is_pending copied
  equal "$(entries_of "$(uid_of theirs "$theirs")")" 1 "nodes with the other team's channel"
  # A template with their label in the way of theirs holds up nobody.
  k -n "$theirs" delete pod victim --wait=false >/dev/null
  k -n "$theirs" delete computedomain theirs --wait=false >/dev/null
  eventually 60 "the end of their ComputeDomain" absent computedomain theirs "$theirs"
}

case_a_pod_without_a_claim_sees_no_channel_and_can_open_none() {
  another_team
  local number
  number=$(channel_by_api theirs "$theirs")
  pod_without_claim without node-1 | kn apply -f - >/dev/null
  eventually 30 "the pod without a claim" running without
  kn exec without -- sh -c '! ls /dev/nvidia-caps-imex-channels' 2>/dev/null || fail "a pod without a claim sees channels"
  contains "$(kn exec without -- sh -c "major=\$(sed -n 's/ nvidia-caps-imex-channels//p' /run/hardware/os/proc/devices)
    mknod /tmp-channel c \$major $number && ! (: </tmp-channel) 2>&1")" 'Operation not permitted' "opening channel $number"
  if kn exec without -- cuda channel >/dev/null 2>&1; then fail "a pod without a claim has a channel"; fi
}

# as_agent NODE: from here on `stolen` is kubectl with the token of the agent of that node, bound to its pod.
as_agent() {
  token=$(k -n heddle create token heddle-agent --bound-object-kind Pod --bound-object-name "$(agent_on "$1")")
}
stolen() { "$programs/kubectl" --kubeconfig /dev/null --server "https://$network.1:443" --insecure-skip-tls-verify --token "$token" "$@"; }
# denied WHAT PATTERN COMMAND...: refused, and by those words.
denied() {
  local what=$1 pattern=$2 said
  shift 2
  if said=$("$@" 2>&1); then fail "an agent's token is good for this: $what; $said"; fi
  contains "$said" "$pattern" "refusal of: $what"
}
changed() { jq "$1" | stolen replace --subresource=status --dry-run=server -f -; }

case_an_agent_s_token_is_good_for_its_own_node_alone() {
  local domain
  domain=$(domain_of node-1)
  as_agent node-1
  # What it may, so that the refusals below are not for another reason.
  k get imexnode node-1 -o json | changed . >/dev/null || fail "an agent may not write its own IMEXNode"
  denied "another's IMEXNode" 'node-1 writes the IMEXNode of that name alone' changed . < <(k get imexnode node-2 -o json)
  denied "the spec of its IMEXNode" 'cannot patch\|cannot update' stolen patch imexnode node-1 --type merge -p '{"spec":{"domain":"x"}}'
  denied "removing another's IMEXNode" 'cannot delete' stolen delete imexnode node-2
  denied "a member of its IMEXDomain" 'cannot patch' stolen patch imexdomain "$domain" --type merge -p '{"spec":{"members":{"node-1":null}}}'
  denied "two ComputeDomains in one write" . changed '.status.channels = {"11111111-2222-4333-8444-555555555555": {channel: 1, state: "Active", epoch: 1, computeDomain: "a/b"},
    "11111111-2222-4333-8444-555555555556": {channel: 2, state: "Active", epoch: 1, computeDomain: "a/c"}}' < <(k get imexdomain "$domain" -o json)
  denied "health of the IMEXDomain" . changed '.status.health.ready = 0' < <(k get imexdomain "$domain" -o json)

  local slice
  slice=$(k get resourceslices -o json | jq '[.items[] | select(.spec.nodeName == "node-1" and .spec.driver == "compute-domain.nvidia.com")][0]
    | {apiVersion, kind, metadata: {name: "forged"}, spec} | .spec.pool.generation += 1')
  publish() { jq "$1" <<<"$slice" | stolen create --dry-run=server -f -; }
  publish . >/dev/null || fail "an agent may not publish its own node's slots"
  denied "slots of another node" 'publishes devices of that node alone' publish '.spec.nodeName = "node-2"'
  denied "slots of all nodes" 'node alone' publish 'del(.spec.nodeName) | .spec.allNodes = true'
  denied "another pool" 'the pool of node node-1 has its name' publish '.spec.pool.name = "node-2"'
  denied "another driver's devices" "Heddle's drivers alone" publish '.spec.driver = "storage.example.com"'
  denied "removing another's slots" 'publishes devices of that node alone' stolen delete \
    "$(k get resourceslices -o json | jq -r '[.items[] | select(.spec.nodeName == "node-2")][0] | "resourceslice/" + .metadata.name')"

  # event JQ: one of the agent's, changed.
  event() {
    jq -n '{apiVersion: "events.k8s.io/v1", kind: "Event", metadata: {generateName: "forged-", namespace: "default"}, eventTime: (now | strftime("%Y-%m-%dT%H:%M:%S.000000Z")),
      action: "Prepare", reason: "Prepared", type: "Normal", note: "all is well", regarding: {kind: "Node", name: "node-1"},
      reportingController: "heddle-agent", reportingInstance: "node-1"} | '"$1" | stolen create --dry-run=server -f -
  }
  event . >/dev/null || fail "an agent may not write Events"
  denied "an Event of the controller's" 'as heddle-agent of that node alone' event '.reportingController = "heddle-controller"'
  denied "an Event of another node's agent" 'as heddle-agent of that node alone' event '.reportingInstance = "node-2"'

  denied "Secrets, with the peers' authorities" 'cannot list' stolen -n heddle get secrets
  denied "the number of pods of a tenant" 'cannot list' stolen get pods -A
  # A token that belongs to no node is good for no node.
  token=$(k -n heddle create token heddle-agent)
  denied "an IMEXNode, with a token of no node" 'bound to no node\|node' changed . < <(k get imexnode node-1 -o json)
}

# request NAME COMMON-NAME [EXTRA-USAGE]: manifest of a CertificateSigningRequest as an agent makes it.
request() {
  local folder
  folder=$(mktemp -d -p "$state/suite")
  openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout "$folder/key" -subj "/CN=$2" \
    -addext "subjectAltName=DNS:$2" -out "$folder/csr" 2>/dev/null
  cat <<Y
apiVersion: certificates.k8s.io/v1
kind: CertificateSigningRequest
metadata: {name: $1}
spec:
  signerName: ${3:-imex.heddle.dev/peer}
  expirationSeconds: 604800
  request: $(base64 -w0 "$folder/csr")
  usages: [client auth, digital signature, server auth]
Y
}
answer() { k get csr "$1" -o 'jsonpath={range .status.conditions[*]}{.type} {.reason}{end}'; }
answered() {
  local answer
  answer=$(answer "$1")
  echo "$answer"
  grep -q "$2" <<<"$answer"
}
delete_requests() { k delete csr heddle-peer-node-1-forged heddle-peer-node-1-good made-by-hand --ignore-not-found; }

case_certificates_of_peers_are_for_members_alone() {
  undo+=(delete_requests)
  local name
  as_agent node-1
  name=$(k get imexnode node-1 -o 'jsonpath={.spec.domain}').peer.imex.heddle.dev
  # What it may: a certificate of the domain that it is a member of.
  request heddle-peer-node-1-good "$name" | stolen create -f - >/dev/null
  eventually 30 "a certificate of its own domain" answered heddle-peer-node-1-good 'Approved PeerIdentity'
  denied "a request of another node" 'a request of node node-1 is called' stolen create -f <(request heddle-peer-node-2-forged "$name")
  denied "another signer" 'signer imex.heddle.dev/peer alone' stolen create -f <(request heddle-peer-node-1-api x kubernetes.io/kube-apiserver-client)
  # The domain of another's exclusive ComputeDomain.
  request heddle-peer-node-1-forged "exclusive-${name#*-}" | stolen create -f - >/dev/null
  eventually 30 "denial of another domain's name" answered heddle-peer-node-1-forged '^Denied'
  denied "approving its own request" 'cannot get\|cannot patch' stolen patch csr heddle-peer-node-1-forged --subresource=approval --type merge \
    -p '{"status": {"conditions": [{"type": "Approved", "status": "True", "reason": "Mine"}]}}'
  # Whoever may create requests and is no agent.
  request made-by-hand "$name" | k create -f - >/dev/null
  eventually 30 "denial of who is no agent" answered made-by-hand 'Denied NotAnAgent'
  local forged
  for forged in heddle-peer-node-1-forged made-by-hand; do
    equal "$(k get csr "$forged" -o 'jsonpath={.status.certificate}')" "" "certificate of $forged"
  done
}
