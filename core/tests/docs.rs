//! What the pages say about the code is so.

use std::collections::BTreeSet;
use std::path::Path;

use heddle_core::imex::{SETTINGS, SetBy, Setting};

#[test]
fn every_reason_is_explained() {
    let page = include_str!("../../docs/troubleshooting.md");
    let explained = |reason: &str| page.lines().any(|line| line.starts_with(&format!("| `{reason}` |")));
    let missing: Vec<_> = heddle_core::fault::reason::ALL.iter().filter(|reason| !explained(reason)).collect();
    assert!(missing.is_empty(), "docs/troubleshooting.md lacks {missing:?}");
}

#[test]
fn every_test_named_on_the_page_of_cases_exists() {
    let page = include_str!("../../docs/cases.md");
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut tests = BTreeSet::new();
    for folder in ["core", "actors", "integration", "src", "tests"] {
        collect(&root.join(folder), &mut tests);
    }
    assert!(tests.contains("every_test_named_on_the_page_of_cases_exists"), "the tree has not been read");
    let on_real_kubernetes = suite_cases(&root.join("integration/testbed/suite"));
    assert!(!on_real_kubernetes.is_empty(), "the testbed's suite has not been read");
    tests.extend(on_real_kubernetes.iter().cloned());
    let rows = page.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| # "));
    let mut named = 0;
    for row in rows {
        // The last column: what people saw may have a word in backticks too.
        let kept = row.trim_end_matches([' ', '|']).rsplit_once(" | ").unwrap().1;
        for name in kept.split('`').skip(1).step_by(2).filter(|name| !name.contains(' ')) {
            assert!(tests.contains(name), "docs/cases.md names {name}, which is no test: {row}");
            named += 1;
        }
    }
    assert!(named > 100, "the page has {named} tests");
    // Those that are named after a row are there for this page.
    let page_lacks: Vec<_> = on_real_kubernetes
        .iter()
        .filter(|name| name.strip_prefix("case_k").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit())))
        .filter(|name| !page.contains(&format!("`{name}`")))
        .collect();
    assert!(page_lacks.is_empty(), "docs/cases.md lacks {page_lacks:?}");
}

/// The names of all cases in the shell scripts of the testbed's suite.
fn suite_cases(folder: &Path) -> BTreeSet<String> {
    let scripts = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let scripts = scripts.filter(|path| path.extension().is_some_and(|extension| extension == "sh"));
    let texts: Vec<_> = scripts.map(|path| std::fs::read_to_string(path).unwrap()).collect();
    let lines = texts.iter().flat_map(|text| text.lines());
    lines
        .filter_map(|line| line.strip_suffix("() {"))
        .filter(|name| name.starts_with("case_"))
        .map(str::to_owned)
        .collect()
}

/// The names of all tests in the Rust files below a folder.
fn collect(folder: &Path, tests: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, tests);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = std::fs::read_to_string(&path).unwrap();
            let mut is_test = false;
            for line in text.lines().map(str::trim_start) {
                if line.starts_with("#[test") || line.starts_with("#[tokio::test") {
                    is_test = true;
                } else if let Some((_, rest)) = line.split_once("fn ") {
                    let name = rest.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default();
                    if std::mem::take(&mut is_test) {
                        tests.insert(name.to_owned());
                    }
                }
            }
        }
    }
}

/// A row of the table of settings.
fn row(setting: &Setting) -> String {
    let value = |value: Option<&str>, none: &str| match value {
        None => none.to_owned(),
        Some("") => "empty".to_owned(),
        Some(text) if text.contains(' ') => text.to_owned(),
        Some(text) => format!("`{text}`"),
    };
    let (takes, who) = match setting.set_by {
        SetBy::Operator => (setting.takes.to_string(), "you".to_owned()),
        SetBy::OperatorWithGss => (setting.takes.to_string(), "you, with `gss`".to_owned()),
        SetBy::Heddle(why) => (String::new(), format!("Heddle: {why}")),
    };
    let Setting { key, package, ours, meaning, .. } = setting;
    let (package, ours) = (value(*package, "not documented"), value(*ours, ""));
    format!("| `{key}` | {package} | {ours} | {meaning} | {takes} | {who} |")
}

/// To make the table anew, put what this prints in place of it.
#[test]
fn every_imex_setting_is_in_the_table_as_it_is() {
    let page = include_str!("../../docs/imex-settings.md");
    let rows: Vec<_> = SETTINGS.iter().map(row).collect();
    let found: Vec<_> = page.lines().filter(|line| line.starts_with("| `")).collect();
    assert_eq!(found, rows, "docs/imex-settings.md should have\n{}", rows.join("\n"));
}
