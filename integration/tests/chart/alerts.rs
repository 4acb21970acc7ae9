//! Alerts are about metrics that there are.

use std::collections::BTreeSet;
use std::path::Path;

const RENDER: &str = include_str!("../../../helm/tests/golden/monitoring.yaml");

/// The metrics that the rules' expressions name, as they are registered.
fn named() -> BTreeSet<String> {
    let expressions = RENDER.lines().filter_map(|line| line.trim_start().strip_prefix("expr: "));
    let words = expressions.flat_map(|text| text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_'));
    let names = words.filter_map(|word| word.strip_prefix("heddle_"));
    names.map(|name| name.trim_end_matches("_total").trim_end_matches("_bucket").to_owned()).collect()
}

fn read(folder: &Path, all: &mut String) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            read(&path, all);
        } else {
            all.push_str(&std::fs::read_to_string(path).unwrap());
        }
    }
}

#[test]
fn every_metric_of_an_alert_is_registered() {
    let mut code = String::new();
    read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../actors/src"), &mut code);
    let names = named();
    assert!(names.len() >= 8, "{names:?}");
    let unknown: Vec<_> = names.iter().filter(|name| !code.contains(&format!("\"{name}\""))).collect();
    assert!(unknown.is_empty(), "nothing registers {unknown:?}");
}
