//! The overview of values in `docs/install.md` is what `helm/values.yaml` has.

use serde_json::Value;

const BOOK: &str = include_str!("../../../docs/install.md");
const VALUES: &str = include_str!("../../../helm/values.yaml");

/// The paths of the table, each with its default if the row tells one.
fn of_book() -> Vec<(String, Option<String>)> {
    let section = BOOK.split("\n## ").find(|section| section.starts_with("Values\n")).unwrap();
    let table = section.split("\n### ").next().unwrap();
    let rows = table.lines().filter(|line| line.starts_with("| `"));
    let quoted = |cell: &str| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>();
    rows.flat_map(|row| {
        let cells: Vec<_> = row.trim_matches('|').split('|').collect();
        let default = quoted(cells[1]).first().cloned();
        quoted(cells[0]).into_iter().map(move |path| (path, default.clone()))
    })
    .collect()
}

fn at<'a>(values: &'a Value, path: &str) -> Option<&'a Value> {
    path.split('.').try_fold(values, |value, key| value.get(key))
}

fn leaves(value: &Value, path: &str, found: &mut Vec<String>) {
    match value.as_object().filter(|map| !map.is_empty()) {
        Some(map) => {
            for (key, value) in map {
                let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                leaves(value, &path, found);
            }
        }
        None => found.push(path.to_owned()),
    }
}

#[test]
fn the_overview_has_every_value_with_its_default() {
    let values: Value = serde_saphyr::from_str(VALUES).unwrap();
    let book = of_book();
    for (path, default) in &book {
        let value = at(&values, path).unwrap_or_else(|| panic!("docs/install.md has {path}, helm/values.yaml has not"));
        if let Some(default) = default {
            let shown = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            assert_eq!(shown, *default, "{path}");
        }
    }
    let mut all = Vec::new();
    leaves(&values, "", &mut all);
    let covers =
        |path: &str, leaf: &str| leaf == path || leaf.strip_prefix(path).is_some_and(|rest| rest.starts_with('.'));
    let missing: Vec<_> = all.iter().filter(|leaf| !book.iter().any(|(path, _)| covers(path, leaf))).collect();
    assert!(missing.is_empty(), "docs/install.md lacks {missing:?}");
}
