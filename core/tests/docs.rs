//! The troubleshooting page knows every reason.

#[test]
fn every_reason_is_explained() {
    let page = include_str!("../../docs/troubleshooting.md");
    let explained = |reason: &str| page.lines().any(|line| line.starts_with(&format!("| `{reason}` |")));
    let missing: Vec<_> = heddle_core::fault::reason::ALL.iter().filter(|reason| !explained(reason)).collect();
    assert!(missing.is_empty(), "docs/troubleshooting.md lacks {missing:?}");
}
