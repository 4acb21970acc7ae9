//! Resource pools: the slices of one generation that belong together, and what a node sees of them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, NodeSelector};
use k8s_openapi::api::resource::v1::{Device, ResourceSlice};

use super::super::device_selector::DeviceVersion;
use super::DeviceId;
use crate::labels::node_selector_matches;

/// All pools, by driver and name.
#[derive(Clone, Debug, Default)]
pub struct Pools(BTreeMap<(String, String), Pool>);

#[derive(Clone, Debug)]
struct Pool {
    generation: i64,
    slices: Vec<Arc<ResourceSlice>>,
    state: State,
}

/// Can a pool be used?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// All slices are there.
    Whole,
    /// Slices are missing: it is being published.
    Incomplete,
    /// Two devices have one name.
    Invalid,
}

impl Pools {
    /// Puts slices together. Only the highest generation of a pool counts.
    pub fn new(slices: impl IntoIterator<Item = Arc<ResourceSlice>>) -> Self {
        let mut pools: BTreeMap<(String, String), Pool> = BTreeMap::new();
        for slice in slices {
            let spec = &slice.spec;
            let generation = spec.pool.generation;
            let pool = pools.entry((spec.driver.clone(), spec.pool.name.clone())).or_insert_with(|| Pool {
                generation,
                slices: Vec::new(),
                state: State::Whole,
            });
            if generation > pool.generation {
                pool.generation = generation;
                pool.slices.clear();
            }
            if generation == pool.generation {
                pool.slices.push(slice);
            }
        }
        for pool in pools.values_mut() {
            pool.slices.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
            pool.state = pool.state();
        }
        Self(pools)
    }
}

impl Pool {
    fn state(&self) -> State {
        let wanted = self.slices.iter().map(|slice| slice.spec.pool.resource_slice_count).max();
        if i64::try_from(self.slices.len()).ok() != wanted {
            return State::Incomplete;
        }
        let mut names = BTreeSet::new();
        let unique = self.slices.iter().flat_map(|s| s.spec.devices.iter().flatten()).all(|d| names.insert(&d.name));
        if unique { State::Whole } else { State::Invalid }
    }
}

/// What one node sees: pools with a slice for it, and their devices in order.
#[derive(Debug)]
pub struct Visible<'a> {
    /// Driver and name of a pool that cannot be used, and why.
    pub broken: Vec<(String, State)>,
    /// The devices of whole pools.
    pub devices: Vec<VisibleDevice<'a>>,
}

/// A device that a node may use.
#[derive(Debug)]
pub struct VisibleDevice<'a> {
    /// Its name in the cluster.
    pub id: DeviceId,
    /// Itself.
    pub device: &'a Device,
    /// The slice it is in.
    pub slice: &'a ResourceSlice,
    /// What its answers to selectors are remembered by.
    pub version: Option<DeviceVersion>,
    /// Some claim holds it.
    pub taken: bool,
}

impl<'a> Visible<'a> {
    /// Collects what `node` sees.
    pub fn on(pools: &'a Pools, node: &Node, taken: &BTreeSet<DeviceId>) -> Self {
        let mut visible = Self { broken: Vec::new(), devices: Vec::new() };
        for ((driver, name), pool) in &pools.0 {
            let mut here = pool.slices.iter().filter(|slice| slice_is_for(slice, node)).peekable();
            if here.peek().is_none() {
                continue;
            }
            if pool.state != State::Whole {
                visible.broken.push((format!("{driver}/{name}"), pool.state));
                continue;
            }
            for slice in here {
                for (index, device) in slice.spec.devices.iter().flatten().enumerate() {
                    if slice.spec.per_device_node_selection == Some(true) && !device_is_for(device, node) {
                        continue;
                    }
                    let id = DeviceId { driver: driver.clone(), pool: name.clone(), device: device.name.clone() };
                    let version = slice.metadata.uid.as_ref().zip(slice.metadata.resource_version.as_ref());
                    visible.devices.push(VisibleDevice {
                        taken: taken.contains(&id),
                        id,
                        device,
                        slice,
                        version: version.map(|(uid, version)| DeviceVersion {
                            slice: uid.clone(),
                            version: version.clone(),
                            index,
                        }),
                    });
                }
            }
        }
        visible
    }
}

fn slice_is_for(slice: &ResourceSlice, node: &Node) -> bool {
    let spec = &slice.spec;
    if spec.per_device_node_selection == Some(true) {
        return spec.devices.iter().flatten().any(|device| device_is_for(device, node));
    }
    is_for(spec.node_name.as_deref(), spec.all_nodes, spec.node_selector.as_ref(), node)
}

fn device_is_for(device: &Device, node: &Node) -> bool {
    is_for(device.node_name.as_deref(), device.all_nodes, device.node_selector.as_ref(), node)
}

fn is_for(name: Option<&str>, all: Option<bool>, selector: Option<&NodeSelector>, node: &Node) -> bool {
    match (name, all, selector) {
        (Some(name), _, _) if !name.is_empty() => node.metadata.name.as_deref() == Some(name),
        (_, Some(true), _) => true,
        (_, _, Some(selector)) => node_selector_matches(selector, node),
        _ => false,
    }
}
