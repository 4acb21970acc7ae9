# Every step of the project has its name here; continuous integration runs the same recipes.

set shell := ["bash", "-euo", "pipefail", "-c"]

arm64 := "aarch64-unknown-linux-gnu"
arm64_env := "CARGO_PROFILE_DEV_DEBUG=false CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc"
qemu := "qemu-aarch64-static -L /usr/aarch64-linux-gnu"

# A minute or more each, most of it limits of the kubelet that are waited for. `just testbed test` has them.
long_cases := "case_(k3|k11|k16|k28|k35|k37|k45)_|a_minute_without|killed_while_pods_come|lost_for_good|nearly_used|quarantined_channel"

scripts := ".ci/run integration/*.sh integration/*/*.sh integration/testbed/testbed integration/testbed/suite/*.sh"

# List the recipes
default:
    @just --list

# Play the picture: three ComputeDomains share nodes, one keeps its own
demo *arguments:
    cargo run --release -- demo {{ arguments }}

# All tests
test:
    cargo test --workspace

# The channel protocol: all interleavings of small clusters, seeded bugs, random runs of a larger cluster. Part of `test`
model *arguments:
    cargo test -p heddle-model -- --nocapture {{ arguments }}

# Formatting
fmt-check:
    cargo fmt --all --check

# Lints, warnings denied
clippy:
    cargo clippy --workspace --all-targets -- -D warnings

# Each crate by itself, and the binary as the image has it
check-alone:
    cargo check -p heddle-core
    cargo check -p heddle-actors
    cargo check -p heddle --no-default-features
    # What only tests may have: places where the disk fails.
    test -z "$(cargo tree -p heddle -e normal,build | grep ' fail v')"

# The debug binary as the tests have it: nothing to build after them
[private]
tested:
    cargo test --workspace --no-run --quiet

# Write the files that are made from code
generate: tested
    mkdir -p helm/crds
    target/debug/heddle crds > helm/crds/heddle.yaml

# Fail when a file that is made from code is not what the code makes
generate-check: generate
    git diff --exit-code -- helm/crds

# The demo, judged by its JSON document
demo-check: tested
    target/debug/heddle demo --json | python3 integration/check-demo.py
    target/debug/heddle demo --json --chaos | python3 integration/check-demo.py

# What Heddle costs with the image's binary, beside the budgets: a node, or `boot`, `exclusive`, `scale` (docs/bench.md)
bench *arguments:
    cargo build --profile dist --no-default-features
    cargo run --release -- bench --binary target/dist/heddle {{ arguments }}

# Build for arm64, test the decisions and play a small demo there
arm64:
    {{ arm64_env }} cargo build --workspace --target {{ arm64 }}
    {{ arm64_env }} \
      CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="{{ qemu }}" \
      cargo test -p heddle-core --target {{ arm64 }}
    HEDDLE_LAUNCHER="{{ qemu }}" {{ qemu }} target/{{ arm64 }}/debug/heddle demo --json --nodes 2 --gpus-per-node 2 -f integration/manifests/small.yaml \
      | python3 integration/check-demo.py

# Compare what the NVML binding takes for granted with NVIDIA's own header, from PyPI
nvml-header-check:
    integration/nvml/check-header.sh

# Ask the reference library of CDI what it makes of the CDI files
cdi-check:
    mkdir -p target
    cd integration/cdi-check && go vet ./... && go build -o ../../target/cdi-check .
    HEDDLE_CDI_CHECK="$PWD/target/cdi-check" cargo test -p heddle-core --test cdi_reference -- --ignored

# Lint the chart, try values that it must refuse, and compare its renders with those that are kept
chart-check:
    helm/tests/check.py "$(integration/helm.sh)"
    integration/promtool.sh helm/tests/golden/monitoring.yaml helm/tests/alerts.yaml

# Keep the chart's renders as they are now
chart-update:
    helm/tests/check.py "$(integration/helm.sh)" --update

# Build the OCI image: --arch amd64, arm64 or all; target/image/heddle.tar is for `ctr images import`
image *arguments:
    integration/image/image.sh build {{ arguments }}

# Build it twice, compare, and start its binary with nothing around it but the image's files
image-check *arguments:
    integration/image/image.sh check {{ arguments }}

# A real Kubernetes with several nodes on this machine: `up`, `install`, `test`, `down`, …; without arguments, what there is
testbed *arguments:
    integration/testbed/testbed {{ arguments }}

# Build what a testbed is made of, so that the first one starts at once
testbed-programs:
    ! integration/testbed/testbed possible || integration/testbed/build.sh

# The end-to-end suite on three testbeds side by side, with the image as it is and the fakes of the debug build; without the cases that wait for minutes
testbed-check: tested
    #!/usr/bin/env bash
    set -euo pipefail
    if ! integration/testbed/testbed possible; then
      echo "testbed-check: NOT RUN, and nothing is known of real Kubernetes: see the line above"
      exit
    fi
    export HEDDLE_TESTBED_BINARY=target/debug/heddle HEDDLE_TESTBED_IMAGE=target/image/heddle.tar
    # Most of a case is waiting. Of files that take equally long; what has a new file is on the last testbed.
    beside=('^(10|20|21|22)-' '^(23|31|35)-') logs=$(mktemp -d) others=() result=0
    trap 'kill "${others[@]}" 2>/dev/null || true; rm -rf "$logs"' EXIT
    for number in "${!beside[@]}"; do
      HEDDLE_TESTBED=$((number + 1)) integration/testbed/testbed test --again \
        --only "${beside[number]}" --without '{{ long_cases }}' >"$logs/$number" 2>&1 &
      others+=($!)
    done
    integration/testbed/testbed test --again --figures --without "$(IFS='|'; echo "${beside[*]}")|{{ long_cases }}" || result=$?
    for number in "${!beside[@]}"; do
      wait "${others[number]}" || result=$?
      echo "== testbed $((number + 1))"
      cat "$logs/$number"
    done
    others=()
    exit $result

# Lint the scripts
shell-check:
    shellcheck --external-sources --source-path=SCRIPTDIR {{ scripts }}
    # Under pipefail, what writes to a reader that has stopped reading fails now and then: `first` and `has` read to the end.
    found=$(cat {{ scripts }} | awk '/\| *(head|grep (-[a-zA-Z]*[qm]|--quiet))/ && !/\|\| true/'); echo "$found"; test -z "$found"

# What continuous integration runs
ci: fmt-check shell-check test clippy check-alone generate-check nvml-header-check cdi-check demo-check chart-check arm64 image-check testbed-programs testbed-check
