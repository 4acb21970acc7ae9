"""Judges the document of `heddle demo --json` on standard input, without believing its own `ok` alone."""

import json
import sys

report = json.load(sys.stdin)
problems = list(report["problems"])

if not report["ok"]:
    problems.append("the demo itself says that not everything held")
for name in ("S1", "S2", "S3", "S4"):
    if report["invariants"].get(name) is not True:
        problems.append(f"invariant {name} did not hold")

channels = {}
for cd in report["computeDomains"]:
    for clique in cd["cliques"]:
        holder = channels.setdefault((clique["imexDomain"], clique["channel"]), cd["name"])
        if holder != cd["name"]:
            problems.append(f"{holder} and {cd['name']} have the same channel")

cliques = {cd["namespace"] + "/" + cd["name"]: len(cd["cliques"]) for cd in report["computeDomains"]}
owners = {pod["namespace"] + "/" + pod["name"]: pod["computeDomain"] for pod in report["pods"]}
for attempt in report["isolation"]:
    same = owners[attempt["from"]] == owners[attempt["to"]]
    if same != attempt["sameComputeDomain"]:
        problems.append(f"{attempt} is wrong about its ComputeDomains")
    # Only members of one clique can share memory.
    if attempt["importAllowed"] != same and not (same and cliques[owners[attempt["from"]]] > 1):
        problems.append(f"{attempt['to']} importing from {attempt['from']}: allowed is {attempt['importAllowed']}")
if not report["isolation"]:
    problems.append("no import was tried")

gpus = {}
for pod in report["pods"]:
    for gpu in pod["gpus"] if pod["node"] else []:
        holder = gpus.setdefault((pod["node"], gpu), pod["name"])
        if holder != pod["name"]:
            problems.append(f"{holder} and {pod['name']} hold GPU {gpu} of {pod['node']}")

for problem in problems:
    print(f"demo: {problem}", file=sys.stderr)
print(f"demo: {len(report['pods'])} pods, {len(report['isolation'])} imports tried, {report['timings']['totalMs']} ms")
sys.exit(bool(problems))
