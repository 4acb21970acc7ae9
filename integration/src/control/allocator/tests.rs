use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::resource::v1::{AllocationResult, DeviceClass, ResourceClaim, ResourceSlice};
use serde_json::{Value, json};

use super::*;

const SLOTS: &str = "compute-domain.nvidia.com";

struct World {
    classes: BTreeMap<String, Arc<DeviceClass>>,
    slices: Vec<Arc<ResourceSlice>>,
    claims: Vec<ResourceClaim>,
}

fn of<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn node(name: &str) -> Node {
    of(json!({"metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}}}))
}

fn slot(i: usize) -> Value {
    json!({"name": format!("slot-{i}"), "attributes": {"type": {"string": "channel"}, "id": {"int": i}}})
}

fn gpu(i: usize, numa: i64) -> Value {
    json!({
        "name": format!("gpu-{i}"),
        "attributes": {"type": {"string": "gpu"}, "numa": {"int": numa}, "driverVersion": {"version": "580.10.2"}},
        "capacity": {"memory": {"value": if i == 0 { "80Gi" } else { "40Gi" }}},
    })
}

fn slice(driver: &str, node: &str, devices: Vec<Value>) -> Value {
    json!({
        "metadata": {"name": format!("{node}-{driver}")},
        "spec": {
            "driver": driver, "nodeName": node, "devices": devices,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
        },
    })
}

fn class(name: &str, expression: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"selectors": [{"cel": {"expression": expression}}]}})
}

/// Nodes with four slots and four GPUs each.
fn world(nodes: &[&str]) -> World {
    let channel = format!("device.driver == '{SLOTS}' && device.attributes['{SLOTS}'].type == 'channel'");
    let gpu_class = "device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == 'gpu'";
    let classes = [class("channel", &channel), class("gpu", gpu_class)];
    let slices = nodes.iter().flat_map(|node| {
        let gpus = (0..4).map(|i| gpu(i, i64::try_from(i / 2).unwrap())).collect();
        [slice(SLOTS, node, (0..4).map(slot).collect()), slice("gpu.nvidia.com", node, gpus)]
    });
    World {
        classes: classes
            .into_iter()
            .map(of::<DeviceClass>)
            .map(|c| (c.metadata.name.clone().unwrap(), Arc::new(c)))
            .collect(),
        slices: slices.map(of).map(Arc::new).collect(),
        claims: Vec::new(),
    }
}

fn claim(name: &str, devices: Value) -> ResourceClaim {
    of(json!({"metadata": {"name": name, "namespace": "default"}, "spec": {"devices": devices}}))
}

fn one(name: &str, class: &str) -> ResourceClaim {
    claim(name, json!({"requests": [{"name": "r", "exactly": {"deviceClassName": class}}]}))
}

fn all(name: &str) -> ResourceClaim {
    claim(
        name,
        json!({"requests": [{"name": "r", "exactly": {"deviceClassName": "channel", "allocationMode": "All"}}]}),
    )
}

impl World {
    fn try_on(&self, node_name: &str, claims: &[&ResourceClaim]) -> Result<Vec<AllocationResult>, Refusal> {
        let pools = Pools::new(self.slices.iter().cloned());
        let taken: BTreeSet<DeviceId> = taken(&self.claims);
        let inputs = Inputs { classes: &self.classes, pools: &pools, taken: &taken };
        allocate(inputs, &mut Selectors::default(), &node(node_name), claims)
    }

    /// Allocates and remembers it as the claim's.
    fn allocate(&mut self, node: &str, claim: &ResourceClaim) -> Vec<String> {
        let mut results = self.try_on(node, &[claim]).unwrap();
        let names = devices(&results[0]);
        let mut claim = claim.clone();
        claim.status.get_or_insert_default().allocation = results.pop();
        self.claims.push(claim);
        names
    }

    fn missing(&self, node: &str, claim: &ResourceClaim) -> String {
        match self.try_on(node, &[claim]) {
            Err(Refusal::Unfit(missing)) => missing.why,
            other => panic!("expected the node to be unfit: {other:?}"),
        }
    }

    fn slice_mut(&mut self, i: usize) -> &mut ResourceSlice {
        Arc::make_mut(&mut self.slices[i])
    }
}

fn devices(result: &AllocationResult) -> Vec<String> {
    let devices = result.devices.as_ref().unwrap();
    devices.results.iter().flatten().map(|r| format!("{}={}", r.request, r.device)).collect()
}

fn no_fit(result: Result<Vec<AllocationResult>, Refusal>) -> bool {
    matches!(result, Err(Refusal::Unfit(_)))
}

#[test]
fn an_exclusive_claim_goes_where_nobody_is() {
    let mut world = world(&["n1", "n2"]);
    world.allocate("n1", &one("green", "channel"));
    world.allocate("n1", &one("blue", "channel"));
    assert_eq!(world.missing("n1", &all("red")), "needs all 4 devices of class channel, 2 are taken");
    assert_eq!(world.allocate("n2", &all("red")).len(), 4);
    assert!(no_fit(world.try_on("n1", &[&all("black")])) && no_fit(world.try_on("n2", &[&all("black")])));
    assert_eq!(world.missing("n2", &one("yellow", "channel")), "needs 1 of class channel, 0 of 4 free");
    assert_eq!(world.allocate("n1", &one("yellow", "channel")), ["r=slot-2"]);
}

#[test]
fn the_allocation_names_node_and_devices() {
    let result = world(&["n1"]).try_on("n1", &[&one("green", "channel")]).unwrap().remove(0);
    let selector = json!({"nodeSelectorTerms": [
        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}
    ]});
    assert_eq!(serde_json::to_value(&result.node_selector).unwrap(), selector);
    let results = serde_json::to_value(&result.devices.unwrap().results).unwrap();
    assert_eq!(results, json!([{"request": "r", "driver": SLOTS, "pool": "n1", "device": "slot-0"}]));
}

#[test]
fn counts() {
    let mut world = world(&["n1"]);
    let three = claim("c", json!({"requests": [{"name": "r", "exactly": {"deviceClassName": "gpu", "count": 3}}]}));
    assert_eq!(world.allocate("n1", &three), ["r=gpu-0", "r=gpu-1", "r=gpu-2"]);
    assert_eq!(world.missing("n1", &three), "needs 3 of class gpu, 1 of 4 free");
}

#[test]
fn one_claim_or_pod_never_gets_a_device_twice() {
    let world = world(&["n1"]);
    let twice = claim(
        "c",
        json!({"requests": [
            {"name": "a", "exactly": {"deviceClassName": "gpu", "count": 2}},
            {"name": "b", "exactly": {"deviceClassName": "gpu", "count": 2}},
        ]}),
    );
    let results = world.try_on("n1", &[&twice]).unwrap();
    assert_eq!(devices(&results[0]), ["a=gpu-0", "a=gpu-1", "b=gpu-2", "b=gpu-3"]);
    assert!(no_fit(world.try_on("n1", &[&twice, &one("d", "gpu")])));
    assert!(no_fit(world.try_on("n1", &[&all("c"), &one("d", "channel")])));
}

#[test]
fn selectors_choose_and_lead_back() {
    let world = world(&["n1"]);
    // The first request could take gpu-0 as well, but then the second has none.
    let picky = claim(
        "c",
        json!({"requests": [
            {"name": "any", "exactly": {"deviceClassName": "gpu"}},
            {"name": "big", "exactly": {"deviceClassName": "gpu", "selectors": [{"cel": {"expression":
                "device.capacity['gpu.nvidia.com'].memory.compareTo(quantity('64Gi')) >= 0"}}]}},
        ]}),
    );
    assert_eq!(devices(&world.try_on("n1", &[&picky]).unwrap()[0]), ["any=gpu-1", "big=gpu-0"]);
}

#[test]
fn a_selector_that_fails_is_the_claims_fault() {
    let world = world(&["n1"]);
    let failing = claim(
        "c",
        json!({"requests": [{"name": "r", "exactly": {"deviceClassName": "gpu", "selectors": [{"cel": {"expression":
            "device.attributes['gpu.nvidia.com'].absent == 1"}}]}}]}),
    );
    let Err(Refusal::Claim(error)) = world.try_on("n1", &[&failing]) else { panic!("must be refused") };
    assert!(error.contains("default/c") && error.contains("gpu.nvidia.com/n1/gpu-0"), "{error}");
    let Err(Refusal::Claim(error)) = world.try_on("n1", &[&one("c", "absent")]) else { panic!("must be refused") };
    assert!(error.contains("\"absent\" not found"), "{error}");
}

#[test]
fn match_attribute_keeps_devices_together() {
    let mut world = world(&["n1"]);
    world.allocate("n1", &one("c", "gpu"));
    let pair = claim(
        "pair",
        json!({
            "requests": [{"name": "r", "exactly": {"deviceClassName": "gpu", "count": 2}}],
            "constraints": [{"matchAttribute": "gpu.nvidia.com/numa"}],
        }),
    );
    assert_eq!(world.allocate("n1", &pair), ["r=gpu-2", "r=gpu-3"]);
    let absent = claim(
        "absent",
        json!({
            "requests": [{"name": "r", "exactly": {"deviceClassName": "gpu"}}],
            "constraints": [{"matchAttribute": "gpu.nvidia.com/absent"}],
        }),
    );
    assert!(world.missing("n1", &absent).contains("constraints"));
}

#[test]
fn a_constraint_binds_only_the_requests_it_names() {
    let world = world(&["n1"]);
    let across = claim(
        "c",
        json!({
            "requests": [
                {"name": "slot", "exactly": {"deviceClassName": "channel"}},
                {"name": "a", "exactly": {"deviceClassName": "gpu"}},
                {"name": "b", "exactly": {"deviceClassName": "gpu", "selectors": [{"cel": {"expression":
                    "device.attributes['gpu.nvidia.com'].numa == 1"}}]}},
            ],
            "constraints": [{"matchAttribute": "gpu.nvidia.com/numa", "requests": ["a", "b"]}],
        }),
    );
    assert_eq!(devices(&world.try_on("n1", &[&across]).unwrap()[0]), ["slot=slot-0", "a=gpu-2", "b=gpu-3"]);
}

#[test]
fn the_first_alternative_that_fits_is_taken() {
    let mut world = world(&["n1"]);
    let choice = claim(
        "c",
        json!({
            "requests": [{"name": "main", "firstAvailable": [
                {"name": "four", "deviceClassName": "gpu", "count": 4},
                {"name": "two", "deviceClassName": "gpu", "count": 2},
            ]}],
            "config": [
                {"requests": ["main/four"], "opaque": {"driver": "d", "parameters": {"four": true}}},
                {"requests": ["main/two"], "opaque": {"driver": "d", "parameters": {"two": true}}},
            ],
        }),
    );
    world.allocate("n1", &one("c", "gpu"));
    let result = world.try_on("n1", &[&choice]).unwrap().remove(0);
    assert_eq!(devices(&result), ["main/two=gpu-1", "main/two=gpu-2"]);
    let config = serde_json::to_value(result.devices.unwrap().config).unwrap();
    assert_eq!(config.as_array().unwrap().len(), 1, "{config}");
    assert_eq!(config[0]["opaque"]["parameters"], json!({"two": true}));
}

#[test]
fn configs_of_class_and_claim_are_merged_in_order() {
    let mut world = world(&["n1"]);
    let gpu = Arc::make_mut(world.classes.get_mut("gpu").unwrap());
    gpu.spec.config = Some(of(json!([{"opaque": {"driver": "gpu.nvidia.com", "parameters": {"from": "class"}}}])));
    let claim = claim(
        "c",
        json!({
            "requests": [
                {"name": "a", "exactly": {"deviceClassName": "gpu"}},
                {"name": "b", "exactly": {"deviceClassName": "channel"}},
            ],
            "config": [
                {"opaque": {"driver": SLOTS, "parameters": {"for": "all"}}},
                {"requests": ["b"], "opaque": {"driver": SLOTS, "parameters": {"for": "b"}}},
                {"requests": ["other"], "opaque": {"driver": SLOTS, "parameters": {"for": "nobody"}}},
            ],
        }),
    );
    let result = world.try_on("n1", &[&claim]).unwrap().remove(0);
    let config = serde_json::to_value(result.devices.unwrap().config).unwrap();
    assert_eq!(
        config,
        json!([
            {"source": "FromClass", "requests": ["a"], "opaque": {"driver": "gpu.nvidia.com", "parameters": {"from": "class"}}},
            {"source": "FromClaim", "opaque": {"driver": SLOTS, "parameters": {"for": "all"}}},
            {"source": "FromClaim", "requests": ["b"], "opaque": {"driver": SLOTS, "parameters": {"for": "b"}}},
        ])
    );
}

#[test]
fn a_claim_holds_at_most_32_devices() {
    let mut world = world(&[]);
    world.slices = vec![Arc::new(of(slice(SLOTS, "n1", (0..33).map(slot).collect())))];
    assert!(world.missing("n1", &all("red")).contains("at most 32"));
    let exact = |count| {
        claim("c", json!({"requests": [{"name": "r", "exactly": {"deviceClassName": "channel", "count": count}}]}))
    };
    assert!(matches!(world.try_on("n1", &[&exact(33)]), Err(Refusal::Claim(e)) if e.contains("claim limit of 32")));
    assert_eq!(world.allocate("n1", &exact(32)).len(), 32);
}

#[test]
fn too_many_devices_lead_to_a_smaller_alternative() {
    let mut world = world(&[]);
    world.slices = vec![Arc::new(of(slice(SLOTS, "n1", (0..40).map(slot).collect())))];
    let choice = |name: &str, first: u32| {
        json!({"name": name, "firstAvailable": [
            {"name": "many", "deviceClassName": "channel", "count": first},
            {"name": "few", "deviceClassName": "channel", "count": 1},
        ]})
    };
    let claim = claim("c", json!({"requests": [choice("a", 20), choice("b", 20)]}));
    let names = devices(&world.try_on("n1", &[&claim]).unwrap()[0]);
    assert_eq!((names.len(), names[20].as_str()), (21, "b/few=slot-20"));
}

#[test]
fn all_needs_at_least_one() {
    let mut world = world(&["n1"]);
    world.slices.remove(0);
    assert_eq!(world.missing("n1", &all("red")), "no matching device of class channel");
}

#[test]
fn a_pool_being_published_is_skipped_and_stops_all() {
    let mut world = world(&["n1"]);
    world.slice_mut(0).spec.pool.resource_slice_count = 2;
    assert!(no_fit(world.try_on("n1", &[&one("c", "channel")])));
    assert!(world.try_on("n1", &[&one("c", "gpu")]).is_ok(), "another pool of the node is untouched");
    let Err(Refusal::Node(error)) = world.try_on("n1", &[&all("red")]) else { panic!("must be refused") };
    assert!(error.contains("currently being updated"), "{error}");
}

#[test]
fn a_pool_with_two_devices_of_one_name_is_invalid() {
    let mut world = world(&["n1"]);
    let devices = world.slice_mut(0).spec.devices.as_mut().unwrap();
    devices[1].name = devices[0].name.clone();
    assert!(no_fit(world.try_on("n1", &[&one("c", "channel")])));
    assert!(matches!(world.try_on("n1", &[&all("red")]), Err(Refusal::Node(e)) if e.contains("invalid")));
}

#[test]
fn only_the_highest_generation_counts() {
    let mut world = world(&["n1"]);
    let mut newer = slice(SLOTS, "n1", vec![slot(7)]);
    newer["spec"]["pool"]["generation"] = json!(2);
    newer["metadata"]["name"] = json!("newer");
    world.slices.push(Arc::new(of(newer)));
    assert_eq!(world.allocate("n1", &all("red")), ["r=slot-7"]);
}

#[test]
fn admin_access_shares_what_is_taken() {
    let mut world = world(&["n1"]);
    world.allocate("n1", &all("red"));
    let admin = claim(
        "admin",
        json!({"requests": [{"name": "r", "exactly": {"deviceClassName": "channel", "allocationMode": "All", "adminAccess": true}}]}),
    );
    assert_eq!(world.allocate("n1", &admin).len(), 4);
    let mut only_admin = world;
    only_admin.claims.remove(0);
    assert!(only_admin.try_on("n1", &[&all("red")]).is_ok(), "admin access takes nothing");
}

#[test]
fn taints_keep_out_who_does_not_tolerate_them() {
    let mut world = world(&["n1"]);
    let devices = world.slice_mut(0).spec.devices.as_mut().unwrap();
    devices[0].taints = Some(of(json!([{"key": "heddle/unhealthy", "effect": "NoSchedule"}])));
    devices[1].taints = Some(of(json!([{"key": "heddle/note", "effect": "None"}])));
    assert_eq!(world.allocate("n1", &one("c", "channel")), ["r=slot-1"]);
    world.claims.clear();
    assert!(world.missing("n1", &all("red")).contains("untolerated taint {heddle/unhealthy}"));
    let tolerant = claim(
        "c",
        json!({"requests": [{"name": "r", "exactly": {"deviceClassName": "channel", "tolerations":
            [{"key": "heddle/unhealthy", "operator": "Exists"}]}}]}),
    );
    assert_eq!(world.allocate("n1", &tolerant), ["r=slot-0"]);
}

#[test]
fn devices_that_all_nodes_share_bind_to_none() {
    let mut world = world(&["n1"]);
    let spec = &mut world.slice_mut(0).spec;
    (spec.node_name, spec.all_nodes) = (None, Some(true));
    let result = world.try_on("elsewhere", &[&one("c", "channel")]).unwrap().remove(0);
    assert_eq!(result.node_selector, None);
}

#[test]
fn a_hopeless_search_ends() {
    let mut world = world(&[]);
    let gpus = (0..64).map(|i| gpu(i, i64::try_from(i).unwrap())).collect();
    world.slices = vec![Arc::new(of(slice("gpu.nvidia.com", "n1", gpus)))];
    let request = |name: &str| json!({"name": name, "exactly": {"deviceClassName": "gpu"}});
    let claim = claim(
        "c",
        json!({
            "requests": (["a", "b", "c", "d", "e"].map(request)),
            "constraints": [{"matchAttribute": "gpu.nvidia.com/numa", "requests": ["a", "e"]}],
        }),
    );
    assert!(matches!(world.try_on("n1", &[&claim]), Err(Refusal::Node(e)) if e.contains("no solution among")));
}
