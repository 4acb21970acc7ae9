//! What the Helm chart makes of its default values: the render that its own check keeps.

use anyhow::Context as _;
use serde_json::Value;

const DEFAULT: &str = include_str!("../../helm/tests/golden/default.yaml");

/// The objects, in the order of the render.
///
/// # Errors
/// The render is no YAML.
pub fn objects() -> anyhow::Result<Vec<Value>> {
    let objects: Vec<Value> = serde_saphyr::from_multiple(DEFAULT).context("the chart's render cannot be read")?;
    Ok(objects.into_iter().filter(|object| !object.is_null()).collect())
}

/// Whether the object is of one of these kinds.
pub fn is_one_of(object: &Value, kinds: &[&str]) -> bool {
    object["kind"].as_str().is_some_and(|kind| kinds.contains(&kind))
}
