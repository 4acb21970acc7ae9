#!/usr/bin/env bash
# Tokens, keys and kubeconfigs of a testbed: pki.sh NODES
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
. "$here/common.sh"

openssl genrsa -out "$state/pki/sa.key" 2048 2>/dev/null
umask 077

# user NAME GROUPS FILE: a token for the user, and a kubeconfig with it.
user() {
  local token
  token=$(openssl rand -hex 16)
  echo "$token,$1,$1,\"$2\"" >>"$state/pki/tokens.csv"
  cat >"$state/$3.kubeconfig" <<Y
apiVersion: v1
kind: Config
clusters: [{name: testbed, cluster: {server: "https://$network.1:443", insecure-skip-tls-verify: true}}]
users: [{name: $1, user: {token: $token}}]
contexts: [{name: testbed, context: {cluster: testbed, user: "$1"}}]
current-context: testbed
Y
}

user admin system:masters admin
user system:kube-scheduler "" scheduler
user system:kube-controller-manager "" controller-manager
for ((node = 1; node <= $1; node++)); do
  user "system:node:node-$node" system:nodes "node-$node"
done
