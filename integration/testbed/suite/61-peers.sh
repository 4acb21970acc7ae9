# shellcheck shell=bash disable=SC2034,SC2154
# Who dials a node's IMEX daemon on the node network, where no NetworkPolicy stands before it.

connected() { imexnode "$1" '{.status.daemon.peersConnected}'; }
# dial NODE-NUMBER [ARGUMENTS-OF-OPENSSL…]: what a TLS client is told; it stays long enough to hear the verdict on its certificate.
dial() {
  local address
  address=$(node_address "$1"):50000
  shift
  timeout 15 openssl s_client -connect "$address" "$@" < <(sleep 3) 2>&1 || true
}
# identity_of NODE-NUMBER FOLDER: copies what the node's daemon shows its peers.
identity_of() {
  local file
  for file in tls.crt tls.key ca.crt; do testbed in "$1" cat "/run/heddle/daemon/identity/$file" >"$2/$file"; done
}
# A server of TLS 1.3 says after the client's last word that it does not take its certificate.
is_refused() { grep -e 'alert' -e 'no peer certificate' -e 'errno=104' <<<"$1"; }

case_a_stranger_on_the_network_is_no_peer() {
  local before daemon said number folder
  eventually 60 "all daemons ready" all_ready
  before=$(connected node-1) daemon=$(daemon_of 1)
  [ "$before" -ge 1 ] || fail "node-1 has no peers at all"
  # A pod without a certificate: in plain words, and as root in its own image.
  pod_without_claim stranger node-2 | kn apply -f - >/dev/null
  eventually 30 "the stranger" running stranger
  said=$(kn exec stranger -- sh -c "printf 'hello\n\n' | nc -w 5 $(node_address 1) 50000" | tr -d '\0' | head -c 200 || true)
  # What answers is TLS's alert record, or nothing: in no case a word of the protocol.
  [[ -z $said || $said == $'\x15'* ]] || fail "a stranger is answered: $said"
  # TLS without a certificate.
  said=$(dial 1)
  contains "$said" 'Acceptable client certificate CA names\|Client Certificate Types\|Requested Signature Algorithms' "whether a certificate is demanded"
  is_refused "$said" >/dev/null || fail "one without a certificate is not refused: $said"
  # A certificate that one has made oneself, of the very name.
  folder=$(mktemp -d -p "$state/suite")
  openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1 -keyout "$folder/tls.key" -out "$folder/tls.crt" \
    -subj "/CN=$(openssl x509 -noout -subject -in <(testbed in 1 cat /run/heddle/daemon/identity/tls.crt) | sed 's/.*CN *= *//')" 2>/dev/null
  said=$(dial 1 -cert "$folder/tls.crt" -key "$folder/tls.key")
  is_refused "$said" >/dev/null || fail "a certificate of one's own making is taken: $said"
  # A member's own is taken, so it is not the dialling that is refused.
  identity_of 2 "$folder"
  said=$(dial 1 -cert "$folder/tls.crt" -key "$folder/tls.key" -CAfile "$folder/ca.crt")
  if is_refused "$said" >/dev/null; then fail "a member's certificate is refused: $said"; fi
  # Nobody has lost a connection over it, and no daemon has ended.
  always 3 "peers of node-1" is "$(connected node-1)" "$before"
  equal "$(daemon_of 1)" "$daemon" "daemon of node-1"
}

case_a_member_of_another_domain_is_no_peer() {
  local folder said before
  { compute_domain alone Domain; pod alone alone node-4; } | kn apply -f - >/dev/null
  eventually 90 "the exclusive pod" running alone
  contains "$(domain_of node-4)" '^exclusive-' "IMEX domain of node-4"
  eventually 60 "node-1 without node-4" three_peers
  before=$(connected node-1)
  folder=$(mktemp -d -p "$state/suite")
  identity_of 4 "$folder"
  said=$(dial 1 -cert "$folder/tls.crt" -key "$folder/tls.key")
  is_refused "$said" >/dev/null || fail "node-1 takes the certificate of node-4's domain: $said"
  identity_of 1 "$folder"
  said=$(dial 4 -cert "$folder/tls.crt" -key "$folder/tls.key")
  is_refused "$said" >/dev/null || fail "node-4 takes the certificate of the shared domain: $said"
  always 3 "peers of node-1" is "$(connected node-1)" "$before"
}
three_peers() { is "$(connected node-1)" 3; }
