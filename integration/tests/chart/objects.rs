//! What must be true of the chart's pods whatever else changes.

use serde_json::{Value, json};

use crate::rendered;

fn pod(kind: &str, name: &str) -> Value {
    rendered()[&(kind.to_owned(), name.to_owned())]["spec"]["template"]["spec"].clone()
}

/// Every pod of the chart, by the name of its workload.
fn pods() -> Vec<(String, Value)> {
    let spec = |((kind, name), object): ((String, String), Value)| {
        let spec = if kind == "Pod" { &object["spec"] } else { &object["spec"]["template"]["spec"] };
        spec["containers"].is_array().then(|| (name, spec.clone()))
    };
    rendered().into_iter().filter_map(spec).collect()
}

#[test]
fn issue_1107_daemons_are_left_alone_by_updates_and_by_the_kubelet() {
    let daemons = &rendered()[&("DaemonSet".to_owned(), "heddle-imex".to_owned())];
    assert_eq!(daemons["spec"]["updateStrategy"], json!({"type": "OnDelete"}));
    let spec = pod("DaemonSet", "heddle-imex");
    assert_eq!(spec["priorityClassName"], "system-node-critical");
    assert_eq!(spec["hostNetwork"], true);
    assert_eq!(spec["tolerations"], json!([{"operator": "Exists"}]));
    let [container] = &spec["containers"].as_array().unwrap()[..] else { panic!("one container") };
    let resources = &container["resources"];
    assert_eq!(resources["requests"], resources["limits"], "Guaranteed");
    assert!(resources["limits"]["cpu"].is_string() && resources["limits"]["memory"].is_string());
    for probe in ["livenessProbe", "startupProbe", "readinessProbe"] {
        assert!(container.get(probe).is_none(), "a {probe} would restart the daemon, or tell nobody anything");
    }
}

#[test]
fn only_what_asks_the_api_server_has_a_token() {
    for (name, spec) in pods() {
        let asks = !matches!(name.as_str(), "heddle-imex" | "heddle-test");
        assert_eq!(spec["automountServiceAccountToken"], json!(asks), "{name}");
    }
    for ((kind, name), object) in rendered() {
        if kind == "ServiceAccount" {
            assert_eq!(object["automountServiceAccountToken"], false, "{name}");
        }
    }
}

#[test]
fn containers_have_a_read_only_root_and_no_more_than_they_need() {
    for (name, spec) in pods() {
        for container in spec["containers"].as_array().unwrap() {
            let context = &container["securityContext"];
            assert_eq!(context["readOnlyRootFilesystem"], true, "{name}");
            if matches!(name.as_str(), "heddle-agent" | "heddle-imex") {
                continue;
            }
            assert_eq!(context["runAsNonRoot"], true, "{name}");
            assert_eq!(context["allowPrivilegeEscalation"], false, "{name}");
            assert_eq!(context["capabilities"], json!({"drop": ["ALL"]}), "{name}");
            assert_eq!(context["seccompProfile"], json!({"type": "RuntimeDefault"}), "{name}");
            assert!(spec["volumes"].is_null(), "{name} has volumes");
        }
    }
}

/// ADR 0006: two agents of a rolling update overlap.
#[test]
fn a_new_agent_begins_before_the_old_one_ends() {
    let agents = &rendered()[&("DaemonSet".to_owned(), "heddle-agent".to_owned())];
    assert_eq!(agents["spec"]["updateStrategy"]["rollingUpdate"]["maxUnavailable"], 0);
    let spec = pod("DaemonSet", "heddle-agent");
    assert_eq!(spec["hostNetwork"], false, "they would want the same ports of the node");
    let ports = spec["containers"][0]["ports"].as_array().unwrap();
    assert!(ports.iter().all(|port| port.get("hostPort").is_none()));
}

/// The CDI folder may be removed and made anew, which a mount of the folder itself would not show.
#[test]
fn the_folder_above_the_cdi_folder_is_mounted() {
    let spec = pod("DaemonSet", "heddle-agent");
    let named = |list: &str, name: &str| {
        let found = spec[list].as_array().or(spec["containers"][0][list].as_array()).unwrap();
        found.iter().find(|entry| entry["name"] == name).unwrap().clone()
    };
    let folder = named("env", "HEDDLE_CDI_DIR")["value"].as_str().unwrap().to_owned();
    let mount = named("volumeMounts", "cdi")["mountPath"].as_str().unwrap().to_owned();
    assert_eq!(folder, format!("{mount}/cdi"));
    assert_eq!(format!("/host{}", named("volumes", "cdi")["hostPath"]["path"].as_str().unwrap()), mount);
}

/// What YAML would read as a number or a boolean is refused by the API server, and a key that is there twice by Flux.
#[test]
fn names_are_text_and_keys_are_there_once_in_every_render() {
    fn look(place: &str, value: &Value) {
        match value {
            Value::Object(map) => {
                for (key, value) in map {
                    let place = format!("{place}.{key}");
                    let names = [
                        "name",
                        "namespace",
                        "serviceAccountName",
                        "priorityClassName",
                        "runtimeClassName",
                        "secretName",
                        "value",
                    ];
                    if names.contains(&key.as_str()) && !value.is_object() {
                        assert!(value.is_string(), "{place} is {value}");
                    }
                    let maps = ["labels", "matchLabels", "annotations", "nodeSelector"];
                    if maps.contains(&key.as_str()) && value.is_object() {
                        let texts = value.as_object().unwrap().values().all(Value::is_string);
                        assert!(texts, "{place} is {value}");
                    }
                    look(&place, value);
                }
            }
            Value::Array(list) => list.iter().for_each(|value| look(place, value)),
            _ => {}
        }
    }
    let goldens = concat!(env!("CARGO_MANIFEST_DIR"), "/../helm/tests/golden");
    let files: Vec<_> = std::fs::read_dir(goldens).unwrap().map(|file| file.unwrap().path()).collect();
    assert!(files.iter().any(|file| file.ends_with("everything.yaml")));
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        let objects: Vec<Value> =
            serde_saphyr::from_multiple(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        objects.iter().for_each(|object| look(&format!("{}: {}", file.display(), object["kind"]), object));
    }
}
