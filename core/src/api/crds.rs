use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};
use kube::CustomResourceExt;

use super::{ComputeDomain, IMEXDomain, IMEXNode};

/// The CRDs of Heddle, in the order in which they are applied.
pub fn crds() -> Vec<CustomResourceDefinition> {
    let mut crds = vec![ComputeDomain::crd(), IMEXDomain::crd(), IMEXNode::crd()];
    for version in crds.iter_mut().flat_map(|crd| &mut crd.spec.versions) {
        if let Some(schema) = version.schema.as_mut().and_then(|schema| schema.open_api_v3_schema.as_mut()) {
            bound(schema);
        }
    }
    crds
}

/// The largest whole number that every reader of JSON keeps exact: 2⁵³.
const EXACT: f64 = 9_007_199_254_740_992.0;

/// Gives every number the bounds of its type. The API server knows no `format` without a sign: what it let through would be
/// an object that nobody of us can read.
fn bound(schema: &mut JSONSchemaProps) {
    let most = match schema.format.as_deref() {
        Some("uint8") => Some(f64::from(u8::MAX)),
        Some("uint16") => Some(f64::from(u16::MAX)),
        Some("uint32") => Some(f64::from(u32::MAX)),
        Some("int32") => Some(f64::from(i32::MAX)),
        Some("uint64" | "int64") => Some(EXACT),
        _ => None,
    };
    if let Some(most) = most {
        schema.maximum = Some(schema.maximum.map_or(most, |bound| bound.min(most)));
        let least = match schema.format.as_deref() {
            Some("int32") => f64::from(i32::MIN),
            Some("int64") => -EXACT,
            _ => 0.0,
        };
        schema.minimum = Some(schema.minimum.map_or(least, |bound| bound.max(least)));
    }
    schema.properties.iter_mut().flat_map(|properties| properties.values_mut()).for_each(bound);
    if let Some(JSONSchemaPropsOrBool::Schema(values)) = &mut schema.additional_properties {
        bound(values);
    }
    match &mut schema.items {
        Some(JSONSchemaPropsOrArray::Schema(items)) => bound(items),
        Some(JSONSchemaPropsOrArray::Schemas(items)) => items.iter_mut().for_each(bound),
        None => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// Every number of a schema, by its path.
    fn numbers(schema: &Value, path: &str, found: &mut Vec<(String, Value)>) {
        if schema["type"] == "integer" {
            found.push((path.to_owned(), schema.clone()));
        }
        for (name, property) in schema["properties"].as_object().into_iter().flatten() {
            numbers(property, &format!("{path}.{name}"), found);
        }
        for inner in ["items", "additionalProperties"] {
            if schema[inner].is_object() {
                numbers(&schema[inner], &format!("{path}.*"), found);
            }
        }
    }

    #[test]
    fn no_number_that_the_api_takes_is_too_large_to_be_read() {
        let mut found = Vec::new();
        for crd in crds() {
            let crd = serde_json::to_value(&crd).unwrap();
            for version in crd["spec"]["versions"].as_array().unwrap() {
                numbers(&version["schema"]["openAPIV3Schema"], "", &mut found);
            }
        }
        assert!(found.len() > 20, "{found:?}");
        for (path, schema) in &found {
            let (least, most) = (schema["minimum"].as_f64(), schema["maximum"].as_f64());
            assert!(least.is_some() && most.is_some_and(|most| most <= EXACT), "{path}: {schema}");
        }
        let channel = found.iter().find(|(path, _)| path == ".status.channels.*.channel").unwrap();
        assert_eq!((channel.1["minimum"].as_f64(), channel.1["maximum"].as_f64()), (Some(0.0), Some(4_294_967_295.0)));
        assert_eq!(json!(EXACT).as_f64(), Some((1_u64 << 53) as f64));
    }
}
