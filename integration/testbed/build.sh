#!/usr/bin/env bash
# Builds Kubernetes, containerd, etcd and Helm from their Go modules, once for each version.
#
#   build.sh [--kubernetes 1.36]    prints the folder with the programs
#
# They are kept outside the checkout, in $HEDDLE_TESTBED_CACHE (default: ~/.cache/heddle-testbed), so that a fresh clone
# finds them. The first time takes 15 to 20 minutes on 2 cores.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
. "$here/versions.sh"

minor=
while (($#)); do
  case $1 in
    --kubernetes) minor=${2:?--kubernetes needs a version such as 1.36}; shift 2 ;;
    *) echo "build.sh knows no $1; it knows --kubernetes VERSION" >&2; exit 2 ;;
  esac
done

cache=${HEDDLE_TESTBED_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/heddle-testbed}
mkdir -p "$cache"
command -v go >/dev/null || { echo "no go on PATH; Kubernetes 1.36 needs Go 1.26 or later" >&2; exit 1; }
export GOFLAGS="-mod=mod -buildvcs=false -trimpath" GOWORK=off

say() { echo "testbed: $*" >&2; }

# built FOLDER: whether all of it is there.
built() { [ -e "$1/complete" ]; }

# module FOLDER: starts the folder of a module over, and goes there.
module() {
  rm -rf "$1"
  mkdir -p "$1/bin"
  cd "$1"
}

# Kubernetes as a dependency: its go.mod replaces its own libraries by folders of its repository, which a module does not
# carry. They are published, one version for each release, as v0.MINOR.PATCH.
build_kubernetes() {
  local version=$1 folder=$2 libraries modfile
  libraries=v0.${version#v1.}
  module "$folder"
  say "fetching Kubernetes $version"
  modfile=$(go mod download -json "k8s.io/kubernetes@$version" | sed -n 's/.*"GoMod": "\(.*\)",/\1/p')
  {
    printf 'module testbed\n\ngo %s\n\n' "$(sed -n 's/^go //p' "$modfile")"
    # What the API server's defaults of the Go runtime are is Kubernetes's to say.
    sed -n '/^godebug /p' "$modfile"
    printf '\nrequire k8s.io/kubernetes %s\n\nreplace (\n' "$version"
    sed -n 's/^\t\(k8s.io\/[a-z0-9-]*\) => .\/staging.*/\1/p' "$modfile" | while read -r library; do
      printf '\t%s => %s %s\n' "$library" "$library" "$libraries"
    done
    printf ')\n'
  } >go.mod
  local programs=(kube-apiserver kube-controller-manager kube-scheduler kubelet kubectl)
  {
    printf '//go:build tools\n\npackage tools\n\nimport (\n'
    printf '\t_ "k8s.io/kubernetes/cmd/%s"\n' "${programs[@]}"
    printf ')\n'
  } >tools.go
  go mod tidy >tidy.log 2>&1 || { tail -5 tidy.log >&2; return 1; }
  # Without these the kubelet reports v0.0.0, and clients take it for too old.
  local is="-X k8s.io/component-base/version" minor=${version#v1.}
  minor=${minor%%.*}
  local flags="-s -w $is.gitVersion=$version $is.gitMajor=1 $is.gitMinor=$minor"
  for program in "${programs[@]}"; do
    say "building $program $version"
    CGO_ENABLED=0 go build -ldflags "$flags" -o bin/ "k8s.io/kubernetes/cmd/$program"
  done
}

build_containerd() {
  local version=$1 programs=(containerd containerd-shim-runc-v2 ctr)
  module "$2"
  go mod init testbed 2>/dev/null
  go mod edit -require "github.com/containerd/containerd/v2@$version"
  {
    printf '//go:build tools\n\npackage tools\n\nimport (\n'
    printf '\t_ "github.com/containerd/containerd/v2/cmd/%s"\n' "${programs[@]}"
    printf ')\n'
  } >tools.go
  go mod tidy >tidy.log 2>&1 || { tail -5 tidy.log >&2; return 1; }
  for program in "${programs[@]}"; do
    say "building $program $version"
    CGO_ENABLED=0 go build -tags 'no_btrfs no_zfs no_devmapper' -ldflags "-s -w -X github.com/containerd/containerd/v2/version.Version=$version" \
      -o bin/ "github.com/containerd/containerd/v2/cmd/$program"
  done
}

build_etcd() {
  module "$2"
  go mod init testbed 2>/dev/null
  go mod edit -require "go.etcd.io/etcd/server/v3@$1"
  mkdir etcd
  printf 'package main\n\nimport (\n\t"os"\n\n\t"go.etcd.io/etcd/server/v3/etcdmain"\n)\n\nfunc main() { etcdmain.Main(os.Args) }\n' >etcd/main.go
  go mod tidy >tidy.log 2>&1 || { tail -5 tidy.log >&2; return 1; }
  say "building etcd $1"
  CGO_ENABLED=0 go build -ldflags '-s -w' -o bin/ ./etcd
}

build_helm() {
  module "$2"
  go mod init testbed 2>/dev/null
  go mod edit -require "helm.sh/helm/v3@$1"
  printf '//go:build tools\n\npackage tools\n\nimport _ "helm.sh/helm/v3/cmd/helm"\n' >tools.go
  go mod tidy >tidy.log 2>&1 || { tail -5 tidy.log >&2; return 1; }
  say "building helm $1"
  CGO_ENABLED=0 go build -ldflags "-s -w -X helm.sh/helm/v3/internal/version.version=$1" -o bin/ helm.sh/helm/v3/cmd/helm
}

# What holds the namespaces of a pod together: it waits, and takes up orphans.
build_pause() {
  module "$2"
  go mod init testbed 2>/dev/null
  cp "$here/pause.go.txt" main.go
  say "building pause $1"
  CGO_ENABLED=0 go build -ldflags '-s -w' -o bin/pause .
}

# once NAME VERSION: builds it unless it is there.
once() {
  local folder=$cache/$1-$2
  if built "$folder"; then return; fi
  local began=$SECONDS
  (
    set -e
    # Two at once would build it twice, and each could see the other's half.
    exec 9>"$folder.lock"
    flock 9
    if ! built "$folder"; then
      "build_$1" "$2" "$folder"
      touch "$folder/complete"
    fi
  )
  say "$1 $2 took $((SECONDS - began)) s"
}

version=$(kubernetes_version "$minor")
once pause "$pause_version"
once etcd "$etcd_version"
once helm "$helm_version"
once containerd "$containerd_version"
once kubernetes "$version"

# One folder with all of it, so that PATH needs one entry.
folder=$cache/bin-$version
mkdir -p "$folder"
for part in "pause-$pause_version" "etcd-$etcd_version" "helm-$helm_version" "containerd-$containerd_version" "kubernetes-$version"; do
  ln -sf "$cache/$part"/bin/* "$folder/"
done
echo "$folder"
