//! The chart gives each command the variables that it knows, and all that it cannot do without.

use std::collections::BTreeSet;
use std::process::Command;

use heddle_integration::chart;
use serde_json::Value;

/// Variables of the chart's containers that are not a flag's: the log's filter, and what others are made of.
const OTHERS: [&str; 1] = ["RUST_LOG"];

/// The variables that a command's help names, and those without which it does not start.
fn known(arguments: &[&str]) -> (BTreeSet<String>, BTreeSet<String>) {
    let output = Command::new(env!("CARGO_BIN_EXE_heddle")).args(arguments).arg("--help").output().unwrap();
    assert!(output.status.success(), "{arguments:?} is no command: {}", String::from_utf8_lossy(&output.stderr));
    let help = String::from_utf8(output.stdout).unwrap();
    // A required flag is in the usage line, and not in brackets.
    let usage = help.lines().find(|line| line.starts_with("Usage:")).unwrap_or_default();
    let required: BTreeSet<_> = usage.split_whitespace().filter(|word| word.starts_with("--")).collect();
    // Help is wrapped anywhere.
    let words = help.split_whitespace().collect::<Vec<_>>();
    let (mut all, mut needed, mut flag) = (BTreeSet::new(), BTreeSet::new(), "");
    for pair in words.windows(2) {
        if pair[0].starts_with("--") && (pair[1].starts_with('<') || pair[1].starts_with(char::is_alphanumeric)) {
            flag = pair[0];
        }
        if pair[0] == "[env:" {
            let name = pair[1].split(['=', ']']).next().unwrap_or_default().to_owned();
            if required.contains(flag) {
                needed.insert(name.clone());
            }
            all.insert(name);
        }
    }
    (all, needed)
}

/// The containers of all pods: the words that they are started with, and their variables.
fn containers() -> Vec<(Vec<String>, BTreeSet<String>)> {
    let mut found = Vec::new();
    for object in chart::objects().unwrap() {
        let pod = if object["kind"] == "Pod" { &object["spec"] } else { &object["spec"]["template"]["spec"] };
        for container in pod["containers"].as_array().into_iter().flatten() {
            let words = |list: &Value| {
                list.as_array().into_iter().flatten().map(|word| word.as_str().unwrap().to_owned()).collect::<Vec<_>>()
            };
            let names = container["env"].as_array().into_iter().flatten();
            let names = names.map(|entry| entry["name"].as_str().unwrap().to_owned()).collect();
            found.push((words(&container["args"]), names));
        }
    }
    found
}

#[test]
fn the_charts_variables_are_those_of_the_commands() {
    let containers = containers();
    assert!(containers.len() >= 6, "{containers:?}");
    for (words, given) in containers {
        let command: Vec<_> = words.iter().map(String::as_str).filter(|word| !word.starts_with('-')).collect();
        let (known, needed) = known(&command);
        let unknown: Vec<_> =
            given.iter().filter(|name| !known.contains(*name) && !OTHERS.contains(&name.as_str())).collect();
        assert!(unknown.is_empty(), "heddle {} does not know {unknown:?}", command.join(" "));
        let missing: Vec<_> = needed.difference(&given).collect();
        assert!(missing.is_empty(), "heddle {} needs {missing:?}", command.join(" "));
    }
}
