use serde_json::json;

use super::*;
use crate::api::crds;

fn own(at: usize) -> CustomResourceDefinition {
    crds().remove(at)
}

/// A CRD of ours with something changed in it, by JSON pointer below its one version's schema.
fn changed(at: usize, change: impl FnOnce(&mut Value)) -> CustomResourceDefinition {
    let mut crd = serde_json::to_value(own(at)).unwrap();
    change(&mut crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]);
    serde_json::from_value(crd).unwrap()
}

/// The CRD of the existing driver, as far as it matters.
fn foreign() -> CustomResourceDefinition {
    serde_json::from_str(include_str!("../../tests/samples/crd/foreign.json")).unwrap()
}

#[test]
fn our_own_fit() {
    for crd in crds() {
        assert_eq!(fits(&crd, &crd), Ok(()));
        assert_eq!(loses(&crd, &crd), [""; 0]);
    }
}

#[test]
fn the_existing_driver_s_does_not_and_ours_keeps_all_of_it() {
    let missing = fits(&own(0), &foreign()).unwrap_err();
    for path in ["spec.isolationMode is missing", "status.conditions is missing", "status.cliques is missing"] {
        assert!(missing.iter().any(|found| found == path), "{path}: {missing:?}");
    }
    assert!(
        missing.iter().any(|found| found.starts_with("spec has no rule `self.channel.allocationMode")),
        "{missing:?}"
    );
    assert!(!missing.iter().any(|found| found.contains("oldSelf")), "that rule is there: {missing:?}");
    assert_eq!(loses(&foreign(), &own(0)), [""; 0]);
    assert!(!loses(&own(0), &foreign()).is_empty());
}

#[test]
fn each_thing_that_is_missing_is_named() {
    let properties = "/properties/spec/properties";
    type Change = Box<dyn Fn(&mut Value)>;
    let cases: [(&str, Change); 9] = [
        (
            "spec.isolationMode may not be \"Domain\"",
            Box::new(move |schema| {
                schema.pointer_mut(properties).unwrap()["isolationMode"]["enum"] = json!(["Channel"]);
            }),
        ),
        (
            "spec.isolationMode does not default to \"Channel\"",
            Box::new(move |schema| {
                schema.pointer_mut(properties).unwrap()["isolationMode"].as_object_mut().unwrap().remove("default");
            }),
        ),
        (
            "spec.isolationMode is of type integer, not string",
            Box::new(move |schema| {
                schema.pointer_mut(properties).unwrap()["isolationMode"] = json!({"type": "integer"});
            }),
        ),
        (
            "spec has no rule `self == oldSelf`",
            Box::new(|schema| {
                schema["properties"]["spec"]["x-kubernetes-validations"].as_array_mut().unwrap().remove(0);
            }),
        ),
        (
            "spec.numNodes has the maximum 18",
            Box::new(move |schema| {
                schema.pointer_mut(properties).unwrap()["numNodes"]["maximum"] = json!(18);
            }),
        ),
        (
            "spec.numNodes has the minimum 1",
            Box::new(move |schema| {
                schema.pointer_mut(properties).unwrap()["numNodes"]["minimum"] = json!(1);
            }),
        ),
        (
            "spec.fabric is required",
            Box::new(|schema| {
                schema["properties"]["spec"]["required"].as_array_mut().unwrap().push(json!("fabric"));
            }),
        ),
        (
            "status.nodes[].cliqueID is missing",
            Box::new(|schema| {
                let items = schema.pointer_mut("/properties/status/properties/nodes/items/properties").unwrap();
                items.as_object_mut().unwrap().remove("cliqueID");
            }),
        ),
        (
            "status.readyNodeCount is missing",
            Box::new(|schema| {
                schema["properties"]["status"]["properties"].as_object_mut().unwrap().remove("readyNodeCount");
            }),
        ),
    ];
    for (expected, change) in cases {
        let served = changed(0, change);
        assert_eq!(fits(&own(0), &served), Err(vec![expected.to_owned()]));
    }
    let served = changed(1, |schema| {
        let status =
            schema.pointer_mut("/properties/status/properties/channels/additionalProperties/properties").unwrap();
        status.as_object_mut().unwrap().remove("epoch");
    });
    assert_eq!(fits(&own(1), &served), Err(vec!["status.channels.*.epoch is missing".to_owned()]));
    let served = changed(2, |schema| {
        schema.pointer_mut("/properties/status/properties/channels").unwrap()["additionalProperties"] = json!(false);
    });
    assert_eq!(fits(&own(2), &served), Err(vec!["status.channels.* is missing".to_owned()]));
}

#[test]
fn what_is_kept_without_being_named_is_kept() {
    let keep = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let served = changed(0, |schema| schema["properties"]["status"] = keep.clone());
    assert_eq!(fits(&own(0), &served), Ok(()));
    let served = changed(1, |schema| schema["properties"]["status"]["properties"]["channels"] = keep.clone());
    assert_eq!(fits(&own(1), &served), Ok(()));
    // A spec that keeps everything guards nothing.
    let served = changed(0, |schema| schema["properties"]["spec"] = keep.clone());
    let missing = fits(&own(0), &served).unwrap_err();
    assert!(missing.iter().any(|found| found.contains("oldSelf")), "{missing:?}");
    assert!(missing.iter().any(|found| found.starts_with("spec.isolationMode does not default")), "{missing:?}");
}

#[test]
fn a_schema_that_says_nothing_does_not_fit() {
    for crd in 0..3 {
        let served = changed(crd, |schema| {
            *schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
        });
        let missing = fits(&own(crd), &served).unwrap_err();
        assert!(missing.contains(&"spec is not required".to_owned()), "{missing:?}");
    }
    let served = changed(0, |schema| *schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true}));
    let missing = fits(&own(0), &served).unwrap_err();
    assert!(missing.iter().any(|found| found.contains("oldSelf")), "{missing:?}");
    assert!(missing.iter().any(|found| found.starts_with("spec.isolationMode does not default")), "{missing:?}");
}

#[test]
fn a_number_without_our_bound_does_not_fit() {
    let at = "/properties/status/properties/channels/additionalProperties/properties/channel";
    for (maximum, fit) in [(Value::Null, false), (json!(1e18), false), (json!(4_294_967_295_u32), true)] {
        let served = changed(1, |schema| schema.pointer_mut(at).unwrap()["maximum"] = maximum.clone());
        let found = fits(&own(1), &served);
        let wanted =
            if fit { Ok(()) } else { Err(vec!["status.channels.*.channel may be larger than 4294967295".into()]) };
        assert_eq!(found, wanted, "{maximum}");
    }
}

#[test]
fn more_than_ours_is_no_harm() {
    let served = changed(0, |schema| {
        let spec = &mut schema["properties"]["spec"];
        spec["properties"]["later"] = json!({"type": "string"});
        spec["properties"]["isolationMode"]["enum"] = json!(["Channel", "Domain", "Rack"]);
        spec["properties"]["numNodes"]["type"] = json!("number");
        spec["x-kubernetes-validations"].as_array_mut().unwrap().push(json!({"rule": "true"}));
    });
    assert_eq!(fits(&own(0), &served), Ok(()));
    let lost = loses(&served, &own(0));
    assert!(lost.iter().any(|found| found == "spec.later is missing"), "{lost:?}");
    assert!(lost.iter().any(|found| found == "spec.isolationMode may not be \"Rack\""), "{lost:?}");
}

#[test]
fn versions_scope_and_subresources_count() {
    let mut served = own(0);
    served.spec.versions[0].served = false;
    assert_eq!(fits(&own(0), &served), Err(vec!["version v1beta1 is not served".to_owned()]));
    let mut served = own(0);
    served.spec.versions[0].subresources = None;
    assert_eq!(fits(&own(0), &served), Err(vec!["version v1beta1 has no subresource status".to_owned()]));
    let mut served = own(0);
    served.spec.scope = "Cluster".into();
    assert_eq!(fits(&own(0), &served), Err(vec!["its scope is Cluster, not Namespaced".to_owned()]));

    // Served as ours is, but stored as another version that has no such field.
    let mut served = own(0);
    let mut stored = foreign().spec.versions.remove(0);
    stored.name = "v1".into();
    served.spec.versions[0].storage = false;
    served.spec.versions.push(stored);
    let missing = fits(&own(0), &served).unwrap_err();
    assert!(
        missing.iter().any(|found| found == "spec.isolationMode is missing (in the stored version v1)"),
        "{missing:?}"
    );
    served.status = Some(serde_json::from_value(json!({"storedVersions": ["v1", "v1beta1"]})).unwrap());
    let kept = stored_elsewhere(&own(0), &served);
    assert_eq!(kept.iter().map(|kept| (kept.name.as_str(), kept.storage)).collect::<Vec<_>>(), [("v1", false)]);
    assert!(loses(&served, &own(0)).iter().any(|found| found == "version v1 is not served"));
}

#[test]
fn the_fault_says_who_and_what_to_run() {
    let mut crd = foreign();
    crd.metadata.managed_fields = serde_json::from_value(json!([
        {"manager": "helm", "operation": "Update", "fieldsV1": {"f:spec": {"f:versions": {}}}},
        {"manager": "heddle", "operation": "Apply", "fieldsV1": {"f:spec": {"f:versions": {}}}},
        {"manager": "kube-apiserver", "operation": "Update", "fieldsV1": {"f:status": {}}},
    ]))
    .unwrap();
    assert_eq!(other_managers(&crd), ["helm"]);
    let missing = fits(&own(0), &crd).unwrap_err();
    let fault = outdated("computedomains.resource.nvidia.com", &missing, &other_managers(&crd));
    assert_eq!(fault.reason, reason::CRD_OUTDATED);
    for part in ["written by helm", "spec.isolationMode is missing", "`heddle crds apply --take-over`"] {
        assert!(fault.message.contains(part), "{fault}");
    }
}
