//! What tables show of the built-in kinds, beside the name.

use serde_json::Value;

use super::table::duration;

/// Where a cell's text comes from.
#[derive(Clone, Copy)]
pub enum Cell {
    /// How long ago the time at this JSON pointer was.
    Age(&'static str),
    /// The object decides.
    Text(fn(&Value) -> String),
}

/// One column.
#[derive(Clone, Copy)]
pub struct Column {
    /// Heading.
    pub name: &'static str,
    /// 0 is always shown, 1 in wide tables.
    pub priority: i64,
    /// Content.
    pub cell: Cell,
}

const fn text(name: &'static str, cell: fn(&Value) -> String) -> Column {
    Column { name, priority: 0, cell: Cell::Text(cell) }
}

const fn wide(name: &'static str, cell: fn(&Value) -> String) -> Column {
    Column { name, priority: 1, cell: Cell::Text(cell) }
}

const AGE: Column = Column { name: "Age", priority: 0, cell: Cell::Age("/metadata/creationTimestamp") };

const PODS: &[Column] = &[
    text("Ready", |pod| {
        let all = pod["spec"]["containers"].as_array().map_or(0, Vec::len);
        let ready = list(&pod["status"]["containerStatuses"]).iter().filter(|status| status["ready"] == true);
        format!("{}/{all}", ready.count())
    }),
    text("Status", pod_status),
    text("Restarts", |pod| {
        let statuses = list(&pod["status"]["containerStatuses"]).iter();
        statuses.map(|status| status["restartCount"].as_i64().unwrap_or_default()).sum::<i64>().to_string()
    }),
    AGE,
    wide("IP", |pod| or_none(&pod["status"]["podIP"])),
    wide("Node", |pod| or_none(&pod["spec"]["nodeName"])),
];

const NODES: &[Column] = &[
    text("Status", |node| {
        let ready = condition(node, "Ready").is_some_and(|condition| condition["status"] == "True");
        let cordoned = if node["spec"]["unschedulable"] == true { ",SchedulingDisabled" } else { "" };
        format!("{}{cordoned}", if ready { "Ready" } else { "NotReady" })
    }),
    text("Roles", |node| {
        let labels = node["metadata"]["labels"].as_object();
        let roles = labels.into_iter().flatten().filter_map(|(k, _)| k.strip_prefix("node-role.kubernetes.io/"));
        let roles = roles.collect::<Vec<_>>().join(",");
        if roles.is_empty() { "<none>".to_owned() } else { roles }
    }),
    AGE,
    text("Version", |node| plain(&node["status"]["nodeInfo"]["kubeletVersion"])),
    wide("Internal-IP", |node| {
        let addresses = list(&node["status"]["addresses"]).iter();
        let internal = addresses.filter(|address| address["type"] == "InternalIP").map(|a| &a["address"]).next();
        or_none(internal.unwrap_or(&Value::Null))
    }),
];

const DEPLOYMENTS: &[Column] = &[
    text("Ready", |object| format!("{}/{}", count(object, "readyReplicas"), number(&object["spec"]["replicas"]))),
    text("Up-to-date", |object| count(object, "updatedReplicas")),
    text("Available", |object| count(object, "availableReplicas")),
    AGE,
];

const REPLICASETS: &[Column] = &[
    text("Desired", |object| number(&object["spec"]["replicas"])),
    text("Current", |object| count(object, "replicas")),
    text("Ready", |object| count(object, "readyReplicas")),
    AGE,
];

const JOBS: &[Column] = &[
    text("Status", |job| {
        let is = |name: &str| condition(job, name).is_some_and(|condition| condition["status"] == "True");
        let state = ["Complete", "Failed", "Suspended", "FailureTarget"].into_iter().find(|name| is(name));
        state.unwrap_or("Running").to_owned()
    }),
    text("Completions", |job| {
        let done = count(job, "succeeded");
        match (job["spec"]["completions"].as_i64(), job["spec"]["parallelism"].as_i64()) {
            (Some(wanted), _) => format!("{done}/{wanted}"),
            (None, Some(parallel)) if parallel > 1 => format!("{done}/1 of {parallel}"),
            _ => format!("{done}/1"),
        }
    }),
    text("Duration", |job| {
        let time = |name: &str| job["status"][name].as_str().and_then(|text| text.parse::<jiff::Timestamp>().ok());
        match (time("startTime"), time("completionTime")) {
            (Some(start), Some(end)) => duration(end.duration_since(start).as_secs().max(0)),
            _ => String::new(),
        }
    }),
    AGE,
];

const EVENTS: &[Column] = &[
    Column { name: "Last Seen", priority: 0, cell: Cell::Age("/metadata/creationTimestamp") },
    text("Type", |event| plain(&event["type"])),
    text("Reason", |event| plain(&event["reason"])),
    text("Object", |event| {
        let about = event.get("involvedObject").or_else(|| event.get("regarding")).unwrap_or(&Value::Null);
        format!("{}/{}", plain(&about["kind"]).to_lowercase(), plain(&about["name"]))
    }),
    text("Message", |event| {
        plain(event.get("message").or_else(|| event.get("note")).unwrap_or(&Value::Null)).trim().to_owned()
    }),
];

const CLAIMS: &[Column] = &[
    text("State", |claim| {
        let reserved = !list(&claim["status"]["reservedFor"]).is_empty();
        let states = [
            (claim["metadata"].get("deletionTimestamp").is_some(), "deleted"),
            (claim["status"].get("allocation").is_some(), "allocated"),
            (reserved, "reserved"),
        ];
        let states = states.iter().filter(|(is, _)| *is).map(|(_, state)| *state).collect::<Vec<_>>();
        if states.is_empty() { "pending".to_owned() } else { states.join(",") }
    }),
    AGE,
];

const SLICES: &[Column] = &[
    text("Node", |slice| match slice["spec"]["nodeName"].as_str() {
        Some(node) => node.to_owned(),
        None if slice["spec"]["allNodes"] == true => "<all>".to_owned(),
        None => "<selected>".to_owned(),
    }),
    text("Driver", |slice| plain(&slice["spec"]["driver"])),
    text("Pool", |slice| plain(&slice["spec"]["pool"]["name"])),
    AGE,
];

const NAMESPACES: &[Column] = &[text("Status", |object| plain(&object["status"]["phase"])), AGE];
const SECRETS: &[Column] = &[text("Type", |object| plain(&object["type"])), text("Data", data), AGE];
const CONFIGMAPS: &[Column] = &[text("Data", data), AGE];
const LEASES: &[Column] = &[text("Holder", |object| plain(&object["spec"]["holderIdentity"])), AGE];
const CRDS: &[Column] = &[text("Created At", |object| plain(&object["metadata"]["creationTimestamp"]))];

/// The columns of a kind.
pub fn of(group: &str, plural: &str) -> &'static [Column] {
    match (group, plural) {
        ("", "pods") => PODS,
        ("", "nodes") => NODES,
        ("", "events") => EVENTS,
        ("", "namespaces") => NAMESPACES,
        ("", "secrets") => SECRETS,
        ("", "configmaps") => CONFIGMAPS,
        ("apps", "deployments") => DEPLOYMENTS,
        ("apps", "replicasets") => REPLICASETS,
        ("batch", "jobs") => JOBS,
        ("coordination.k8s.io", "leases") => LEASES,
        ("resource.k8s.io", "resourceclaims") => CLAIMS,
        ("resource.k8s.io", "resourceslices") => SLICES,
        ("apiextensions.k8s.io", _) => CRDS,
        _ => &[AGE],
    }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

fn plain(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn or_none(value: &Value) -> String {
    value.as_str().filter(|text| !text.is_empty()).unwrap_or("<none>").to_owned()
}

fn number(value: &Value) -> String {
    value.as_i64().unwrap_or_default().to_string()
}

fn count(object: &Value, field: &str) -> String {
    number(&object["status"][field])
}

fn data(object: &Value) -> String {
    let size = |field: &str| object[field].as_object().map_or(0, serde_json::Map::len);
    (size("data") + size("binaryData")).to_string()
}

fn condition<'a>(object: &'a Value, name: &str) -> Option<&'a Value> {
    list(&object["status"]["conditions"]).iter().find(|condition| condition["type"] == name)
}

/// The phase, or what keeps a container of the pod from running.
fn pod_status(pod: &Value) -> String {
    if pod["metadata"].get("deletionTimestamp").is_some() {
        return "Terminating".to_owned();
    }
    let containers = list(&pod["status"]["containerStatuses"]);
    let init = list(&pod["status"]["initContainerStatuses"]);
    let why = |status: &Value| {
        let state = &status["state"];
        let reason = state["waiting"]["reason"].as_str().or_else(|| state["terminated"]["reason"].as_str());
        reason.filter(|reason| !reason.is_empty()).map(str::to_owned)
    };
    let unfinished = init.iter().filter(|status| status["state"]["terminated"]["exitCode"] != 0).find_map(why);
    if let Some(reason) = unfinished {
        return format!("Init:{reason}");
    }
    let reason = pod["status"]["reason"].as_str().map(str::to_owned);
    containers
        .iter()
        .rev()
        .find_map(why)
        .or(reason)
        .unwrap_or_else(|| pod["status"]["phase"].as_str().unwrap_or("Unknown").to_owned())
}
