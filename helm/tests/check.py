#!/usr/bin/env python3
"""Checks the chart: lint, values that the schema must refuse, and renders that must be what is kept.

    check.py HELM [--update]

HELM is the program. With --update the kept renders are written anew. Python's standard library is all it needs.
"""

import difflib
import pathlib
import re
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
CHART = HERE.parent
KUBE = ["--kube-version", "1.36.0"]

# A render of each that people install: a name and its values, from tests/values/<name>.yaml.
RENDERS = ["default", "everything", "nothing", "host-managed", "host-managed-unprivileged", "no-gpus", "monitoring", "talos", "own-certificates", "unprivileged"]

# Values that must be refused, and the words that must be said.
REFUSED = [
    (["slots=0"], "at '/slots': minimum: got 0, want 1"),
    (["slots=32"], "at '/slots': maximum: got 32, want 31"),
    (["slots=many"], "at '/slots': got string, want integer"),
    (["slot=3"], "additional properties 'slot' not allowed"),
    (["kubeletPlugin.container.x=1"], "additional properties 'container' not allowed"),
    (["imex.mode=host-managed"], "must be one of 'driverManaged', 'hostManaged'"),
    (["imex.directory=/var/heddle"], "at '/imex/directory'"),
    (["imex.settings.LOG-LEVEL=3"], "LOG-LEVEL"),
    (["imex.settings.LOG_LEVEL=3\n4"], "at '/imex/settings/LOG_LEVEL'"),
    (["imex.peerPort=70000"], "at '/imex/peerPort'"),
    (["imex.resources.limits.cpu=1"], "requests and limits must be equal"),
    (["imex.mode=hostManaged", "imex.settings.LOG_LEVEL=3"], "the daemon is configured on the host"),
    (["nvidiaDriverRoot=run/nvidia"], "at '/nvidiaDriverRoot'"),
    (["nvidiaDriverRoot=/run/nvidia/"], "at '/nvidiaDriverRoot'"),
    (["nvidiaDriverRoot=/run/../etc"], "at '/nvidiaDriverRoot'"),
    (["cdi.directory=/cdi"], "at '/cdi/directory'"),
    (["peerAuthentication.mode=tls"], "must be one of 'domain-ca', 'files', 'gss', 'insecure'"),
    (["peerAuthentication.mode=files"], "at '/peerAuthentication/secretName'"),
    (["peerAuthentication.secretName=mine"], "at '/peerAuthentication/secretName'"),
    (["peerAuthentication.certificateHours=0"], "at '/peerAuthentication/certificateHours'"),
    (["runtimeGuard.mode=strict"], "must be one of 'warn', 'require', 'off'"),
    (["fabricAccess=unicast"], "at '/fabricAccess'"),
    (["listenAddress=::"], "must be one of '0.0.0.0', '[::]'"),
    (["controller.replicas=0"], "at '/controller/replicas'"),
    (["controller.lease.renewSeconds=0"], "at '/controller/lease/renewSeconds'"),
    (["controller.lease.renewSeconds=5"], "renew at least twice"),
    (["image.digest=sha256:abc"], "at '/image/digest'"),
    (["image.pullPolicy=Sometimes"], "at '/image/pullPolicy'"),
    (["logLevel=verbose"], "at '/logLevel'"),
    (["monitoring.podMonitor.interval=often"], "at '/monitoring/podMonitor/interval'"),
    (["networkPolicy=null"], "missing property 'networkPolicy'"),
    (["controller.containers=null"], "missing property 'containers'"),
    (["kubeletPlugin.updateStrategy.rollingUpdate=null"], "missing property 'rollingUpdate'"),
    (["slots=null"], "missing property 'slots'"),
    (["imex.peerPort=null"], "missing property 'peerPort'"),
    (["image=null"], "missing property 'image'"),
    (["resources.gpus.enabled=null"], "missing property 'enabled'"),
    (["controller.lease.durationSeconds=null"], "missing property 'durationSeconds'"),
    (["cdi.directory=/x/../cdi"], "at '/cdi/directory'"),
    (["imex.directory=/run/../etc"], "at '/imex/directory'"),
    (["runtimeGuard.toolkitConfig={/etc/../x}"], "at '/runtimeGuard/toolkitConfig/0'"),
    (["fullnameOverride=a..b"], "at '/fullnameOverride'"),
    (["namespaceOverride=a.b"], "at '/namespaceOverride'"),
    (["kubeletPlugin.runtimeClassName=yes: no"], "at '/kubeletPlugin/runtimeClassName'"),
    (["imex.daemonSees={/dev}"], "at '/imex/daemonSees/0'"),
    (["imex.daemonSees={/run/heddle}"], "the runner's own folder"),
    (["imex.settings.LOG_FILE_NAME=a\u2028b"], "at '/imex/settings/LOG_FILE_NAME'"),
    (["imex.settings.LOG_LEVEL=9223372036854775807"], "at '/imex/settings/LOG_LEVEL'"),
    (["kubeletPlugin.containers.computeDomains.resources.claims[0].name=x"], "'claims' not allowed"),
    (["kubeletPlugin.serviceAccount.create=false", "controller.serviceAccount.create=false"], "name two"),
    (["kubeletPlugin.serviceAccount.name=x", "controller.serviceAccount.name=x"], "name two"),
    (["kubeletPlugin.serviceAccount.name=heddle-imex"], "which the chart makes for something else"),
    (["kubeletPlugin.updateStrategy.rollingUpdate.maxUnavailable=1"], "set the other to 0"),
    (["kubeletPlugin.updateStrategy.rollingUpdate.maxSurge=0%"], "set the other to 0"),
    (["kubeletPlugin.kubeletPluginsDirectoryPath=/a", "kubeletPlugin.kubeletRegistrarDirectoryPath=/a"], "not one"),
    (["kubeletPlugin.metrics.port=51515"], "served by one process"),
    (["imex.metrics.enabled=true", "imex.metrics.port=50000"], "both on the node's network"),
    (["imex.mode=hostManaged", "imex.metrics.enabled=true"], "there is no imex pod"),
    (["imex.mode=hostManaged", "peerAuthentication.mode=files", "peerAuthentication.secretName=x"], "the host's configuration"),
]


def run(*command):
    """The outcome of a command: whether it succeeded, what it printed, what it complained of."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode == 0, done.stdout, done.stderr


def plain(text):
    """A render without what changes with every release."""
    version = re.search(r"^version: (.*)$", (CHART / "Chart.yaml").read_text(), re.M)[1]
    return text.replace(f"heddle-{version}", "heddle-VERSION").replace(f'"{version}"', '"VERSION"').replace(
        f":{version}\"", ":VERSION\""
    )


def render(helm, name):
    """The chart with the values of one render."""
    values = HERE / "values" / f"{name}.yaml"
    ok, text, complaint = run(helm, "template", "heddle", str(CHART), "-n", "heddle", "-f", str(values), *KUBE)
    return plain(text) if ok else sys.exit(f"{name}: helm template failed: {complaint}")


def main():
    """Runs all checks; the exit code says whether they hold."""
    helm, update = sys.argv[1], "--update" in sys.argv[2:]
    faults = []
    for name in RENDERS:
        values = str(HERE / "values" / f"{name}.yaml")
        ok, text, complaint = run(helm, "lint", str(CHART), "--strict", "-f", values, *KUBE)
        if not ok:
            faults.append(f"{name}: helm lint --strict: {text}{complaint}")
        kept, now = HERE / "golden" / f"{name}.yaml", render(helm, name)
        if update:
            kept.write_text(now)
        known = kept.read_text() if kept.exists() else ""
        if now != known:
            diff = difflib.unified_diff(known.splitlines(), now.splitlines(), f"golden/{name}.yaml", "now", lineterm="", n=2)
            faults.append("\n".join(list(diff)[:60]) + "\n  `just chart-update` keeps the new render")
    for values, words in REFUSED:
        flags = [flag for value in values for flag in ("--set", value)]
        ok, _, complaint = run(helm, "template", "heddle", str(CHART), *KUBE, *flags)
        if ok:
            faults.append(f"{values} was not refused")
        elif words not in complaint:
            faults.append(f"{values} was refused without the words {words!r}: {complaint}")
    for fault in faults:
        print(fault, file=sys.stderr)
    print(f"chart: {len(RENDERS)} renders, {len(REFUSED)} refusals, {len(faults)} faults")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
