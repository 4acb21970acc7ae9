//! The tables of `docs/rights.md` are what the chart gives, right by right.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::rendered;

const BOOK: &str = include_str!("../../../docs/rights.md");

/// Scope, API group, resource, name of the object or `*`, verb.
type Right = (&'static str, String, String, String, String);

/// Every first cell of a table row is an API group; the last says what it is for.
fn of_book(heading: &str) -> BTreeSet<Right> {
    let section =
        BOOK.split("\n## ").find(|section| section.starts_with(heading)).unwrap_or_else(|| panic!("no {heading:?}"));
    let is_row = |line: &&str| line.starts_with('|');
    let table = section.lines().skip_while(|line| !is_row(line)).take_while(is_row);
    let rows = table.filter(|line| !line.starts_with("|---"));
    rows.skip(1).flat_map(right).collect()
}

fn right(row: &str) -> Vec<Right> {
    let cells: Vec<_> = row.trim_matches('|').split('|').map(str::trim).collect();
    let [group, resources, verbs, _] = cells[..] else { panic!("{row} has not four cells") };
    let scope = if group.ends_with("in Heddle's namespace") { "namespace" } else { "cluster" };
    let group = quoted(group).first().cloned().unwrap_or_default();
    let (resources, names) = resources.split_once(", named ").unwrap_or((resources, ""));
    let names = if names.is_empty() { vec!["*".to_owned()] } else { quoted(names) };
    let mut rights = Vec::new();
    for resource in quoted(resources) {
        for name in &names {
            for verb in verbs.split(", ") {
                rights.push((scope, group.clone(), resource.clone(), name.clone(), verb.to_owned()));
            }
        }
    }
    rights
}

fn quoted(cell: &str) -> Vec<String> {
    cell.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

fn of_chart(name: &str) -> BTreeSet<Right> {
    let objects = rendered();
    let mut rights = BTreeSet::new();
    for (kind, scope) in [("ClusterRole", "cluster"), ("Role", "namespace")] {
        let Some(role) = objects.get(&(kind.to_owned(), name.to_owned())) else { continue };
        for rule in role["rules"].as_array().unwrap() {
            let names = words(&rule["resourceNames"]);
            let names = if names.is_empty() { vec!["*".to_owned()] } else { names };
            for group in words(&rule["apiGroups"]) {
                for resource in words(&rule["resources"]) {
                    for name in &names {
                        for verb in words(&rule["verbs"]) {
                            rights.insert((scope, group.clone(), resource.clone(), name.clone(), verb));
                        }
                    }
                }
            }
        }
    }
    rights
}

fn words(list: &Value) -> Vec<String> {
    list.as_array().into_iter().flatten().map(|word| word.as_str().unwrap().to_owned()).collect()
}

#[test]
fn the_book_and_the_chart_give_the_same_rights() {
    for (heading, role) in [
        ("What an agent asks of the API server", "heddle-agent"),
        ("What the controller asks of the API server", "heddle-controller"),
        ("What an uninstall asks of the API server", "heddle-uninstall"),
        ("What the hook that applies the CRDs asks of the API server", "heddle-crds"),
    ] {
        let (book, chart) = (of_book(heading), of_chart(role));
        let unwritten: Vec<_> = chart.difference(&book).collect();
        let ungiven: Vec<_> = book.difference(&chart).collect();
        assert!(
            unwritten.is_empty() && ungiven.is_empty(),
            "{role}: not in docs/rights.md: {unwritten:?}; not in the chart: {ungiven:?}"
        );
    }
}

#[test]
fn nobody_may_do_everything() {
    for ((kind, name), role) in rendered() {
        if kind != "ClusterRole" && kind != "Role" {
            continue;
        }
        for rule in role["rules"].as_array().unwrap() {
            for field in ["apiGroups", "resources", "verbs"] {
                assert!(words(&rule[field]).iter().all(|word| word != "*"), "{name}: {rule}");
            }
        }
    }
}
