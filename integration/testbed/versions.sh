# shellcheck shell=bash disable=SC2034
# What the testbed is built from; each a Go module's version. The Kubernetes default is the first line.

kubernetes_versions=(
  1.36=v1.36.3
  1.34=v1.34.4
  1.35=v1.35.4
  1.37=v1.37.2
)
containerd_version=v2.3.7
etcd_version=v3.6.16
helm_version=v3.20.2
# Our own: raised when pause.go.txt changes.
pause_version=1

# The full version of a Kubernetes minor version, or of the default one.
kubernetes_version() {
  local wanted=${1:-} entry
  [ -n "$wanted" ] || wanted=${kubernetes_versions[0]%%=*}
  for entry in "${kubernetes_versions[@]}"; do
    if [ "${entry%%=*}" = "$wanted" ]; then
      echo "${entry#*=}"
      return
    fi
  done
  echo "no Kubernetes $wanted in integration/testbed/versions.sh; there are: ${kubernetes_versions[*]%%=*}" >&2
  return 1
}
