"""The table of figures.sh: figures.py FOLDER PODS MEASURED-MS INSTALL-MS IMAGE-BYTES TICKS."""
import collections
import json
import math
import pathlib
import re
import sys

folder, pods, measured, install, image, ticks = pathlib.Path(sys.argv[1]), *map(int, sys.argv[2:])
rows = []


def row(figure, value, budget=""):
    rows.append((figure, value, budget))


def quantile(values, q):
    values = sorted(values)
    return values[max(0, math.ceil(q * len(values)) - 1)]


def told(values):
    if not values:
        return "not seen"
    return f"p50 {1000 * quantile(values, .5):.0f} ms, p99 {1000 * quantile(values, .99):.0f} ms, n={len(values)}"


def lines(name):
    return (folder / name).read_text().splitlines()


def first_seen(name, field):
    """When each object was first told of with that field, and with what."""
    seen = {}
    for line in lines(name):
        words = line.split(" ")
        if len(words) > field and words[field]:
            seen.setdefault((words[1], words[field]), float(words[0]))
    return seen


phases = first_seen("pods", 2)
running = {kind: [] for kind in ("with-", "without-")}
for (name, phase), at in phases.items():
    for kind, times in running.items():
        if phase == "Running" and name.startswith(kind) and (name, "Pending") in phases:
            times.append(at - phases[name, "Pending"])
row("pod created → Running, with a channel claim", told(running["with-"]), "the same without + 100 ms")
row("the same pod without claim", told(running["without-"]))
if running["with-"] and running["without-"]:
    more = quantile(running["with-"], .5) - quantile(running["without-"], .5)
    row("difference of the medians", f"{1000 * more:.0f} ms", "100 ms")

allocated, prepared, between = {}, {}, []
for line in lines("claims"):
    at, name, *devices = line.split(" ")
    if not name.startswith("with-"):
        continue
    if devices and devices[0]:
        allocated.setdefault(name, float(at))
    if len(devices) > 1 and devices[1] and name not in prepared:
        prepared[name] = float(at)
        between.append(float(at) - allocated[name])
row("claim allocated → prepared, as the API tells", told(between), "kubelet's delays")


def buckets(name):
    counted = collections.Counter()
    for line in lines(name):
        found = re.match(r'heddle_claim_seconds_bucket\{(.*)\} (\d+)', line)
        if found and 'driver="compute-domain' in found[1] and 'call="prepare"' in found[1] and 'outcome="done"' in found[1]:
            counted[float(re.search(r'le="([^"]+)"', found[1])[1].replace("+Inf", "inf"))] += int(found[2])
    return counted


before, after = buckets("before"), buckets("after")
counts = sorted((bound, after[bound] - before[bound]) for bound in after)
calls = counts[-1][1] if counts else 0


def at_most(q):
    return next((f"≤ {1000 * bound:g} ms" for bound, count in counts if calls and count >= q * calls), "not seen")


row("Prepare, the whole call, by the agent's histogram", f"p50 {at_most(.5)}, p99 {at_most(.99)}, n={calls}", "p50 ≤ 5 ms, p99 ≤ API round trip + 5 ms")

requests = collections.Counter()
for line in lines("audit"):
    try:
        event = json.loads(line)
    except ValueError:
        continue
    user = event.get("user", {}).get("username", "")
    component = user.removeprefix("system:serviceaccount:heddle:heddle-")
    resource = event.get("objectRef", {})
    # A Lease is renewed for ever, a watch ends by the clock, and neither has to do with claims.
    if component == user or event.get("stage") != "ResponseComplete" or resource.get("resource") == "leases" or event["verb"] == "watch":
        continue
    path = "/".join(filter(None, (resource.get("resource"), resource.get("subresource"))))
    requests[component, event["verb"], path] += 1
for component, budget in (("agent", "1 write"), ("controller", "0")):
    of = {(verb, path): number for (who, verb, path), number in requests.items() if who == component}
    named = ", ".join(f"{verb} {path} {number / pods:.2f}" for (verb, path), number in sorted(of.items(), key=lambda one: -one[1])[:5])
    row(f"API requests per claim, {component}", f"{sum(of.values()) / pods:.2f}" + (f" ({named})" if named else ""), budget)

started = collections.defaultdict(list)
for line in lines("processes-before"):
    node, role, _, _, used = line.split()
    started[node, role].append(int(used))
rss, anonymous, cpu = collections.defaultdict(list), collections.defaultdict(list), collections.Counter()
for line in lines("processes-after"):
    node, role, kib, of_its_own, used = line.split()
    rss[role].append(int(kib) / 1024)
    anonymous[role].append(int(of_its_own) / 1024)
    cpu[role] += int(used) - sum(started[node, role])
for role, budget in (("agent", "≤ 15 MiB, anonymous ≤ 5"), ("imex-runner", ""), ("controller", "")):
    if rss[role]:
        # The rest is the program's file, which agent, runner and controller of a node share.
        row(f"{role}, RSS of each, of it anonymous", f"{min(rss[role]):.1f} to {max(rss[role]):.1f}, {max(anonymous[role]):.1f} MiB", budget)
        row(f"{role}, CPU of all while measured", f"{1000 * cpu[role] / ticks:.0f} ms in {measured / 1000:.0f} s")

row("image, compressed", f"{image / 2**20:.1f} MiB" if image else "not seen", "≤ 40 MiB")
row("install → ready", f"{install / 1000:.1f} s" if install else "not seen")

width = [max(len(row[column]) for row in rows) for column in range(2)]
print(f"{'figure':{width[0]}}  {'measured':{width[1]}}  budget")
for figure, value, budget in rows:
    print(f"{figure:{width[0]}}  {value:{width[1]}}  {budget}".rstrip())
