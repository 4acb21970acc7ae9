//! A claim's requests in one shape, whether exact or a list of alternatives.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::resource::v1::{DeviceClass, DeviceSelector, DeviceTaint, DeviceToleration, ResourceClaim};

use super::constraint::Constraint;
use super::{MAX_RESULTS, full_name};

/// Most alternatives of one request.
const MAX_ALTERNATIVES: usize = 8;

/// A claim, ready for the search.
#[derive(Debug)]
pub struct Plan<'a> {
    /// The claim.
    pub claim: &'a ResourceClaim,
    /// Its requests, in order.
    pub requests: Vec<Request<'a>>,
    /// What must hold between the devices.
    pub constraints: Vec<Constraint>,
}

/// A request: one of its alternatives is to be served, earlier ones rather.
#[derive(Debug)]
pub struct Request<'a> {
    /// Its name in the claim.
    pub name: &'a str,
    /// One for an exact request.
    pub alternatives: Vec<Alternative<'a>>,
}

/// What is asked for.
#[derive(Debug)]
pub struct Alternative<'a> {
    /// The name that results carry: `request` or `request/subrequest`.
    pub name: String,
    /// The class.
    pub class: &'a DeviceClass,
    /// How many devices.
    pub amount: Amount,
    /// Devices may be in use by others.
    pub admin: bool,
    selectors: &'a [DeviceSelector],
    /// The taints that do not matter.
    pub tolerations: &'a [DeviceToleration],
}

/// How many devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    /// So many.
    Exactly(usize),
    /// Every matching one that the node sees.
    All,
}

impl<'a> Plan<'a> {
    /// Reads a claim.
    ///
    /// # Errors
    /// A sentence for what no node can serve: an unknown class, more than a claim may hold, what is not understood.
    pub fn of(claim: &'a ResourceClaim, classes: &'a BTreeMap<String, Arc<DeviceClass>>) -> Result<Self, String> {
        let name = full_name(claim);
        let devices = claim.spec.devices.as_ref();
        let requests = devices
            .and_then(|devices| devices.requests.as_deref())
            .unwrap_or_default()
            .iter()
            .map(|request| Request::of(request, classes))
            .collect::<Result<Vec<_>, _>>()
            .map_err(|e| format!("claim {name}, {e}"))?;
        let constraints = devices
            .and_then(|devices| devices.constraints.as_deref())
            .unwrap_or_default()
            .iter()
            .enumerate()
            .map(|(i, constraint)| {
                Constraint::of(constraint).map_err(|e| format!("claim {name}, constraint #{i}: {e}"))
            })
            .collect::<Result<Vec<_>, _>>()?;
        let least: usize = requests.iter().map(Request::least).sum();
        if least > MAX_RESULTS {
            return Err(format!(
                "claim {name}: number of requested devices {least} exceeds the claim limit of {MAX_RESULTS}"
            ));
        }
        Ok(Self { claim, requests, constraints })
    }
}

impl<'a> Request<'a> {
    fn of(
        request: &'a k8s_openapi::api::resource::v1::DeviceRequest,
        classes: &'a BTreeMap<String, Arc<DeviceClass>>,
    ) -> Result<Self, String> {
        let name = request.name.as_str();
        let alternatives = if let Some(exact) = &request.exactly {
            vec![Alternative {
                name: name.to_owned(),
                class: class(name, &exact.device_class_name, classes)?,
                amount: amount(name, exact.allocation_mode.as_deref(), exact.count)?,
                admin: exact.admin_access == Some(true),
                selectors: selectors(name, exact.selectors.as_deref())?,
                tolerations: exact.tolerations.as_deref().unwrap_or_default(),
            }]
        } else {
            request
                .first_available
                .iter()
                .flatten()
                .take(MAX_ALTERNATIVES)
                .map(|sub| {
                    let name = format!("{name}/{}", sub.name);
                    Ok(Alternative {
                        class: class(&name, &sub.device_class_name, classes)?,
                        amount: amount(&name, sub.allocation_mode.as_deref(), sub.count)?,
                        admin: false,
                        selectors: selectors(&name, sub.selectors.as_deref())?,
                        tolerations: sub.tolerations.as_deref().unwrap_or_default(),
                        name,
                    })
                })
                .collect::<Result<Vec<_>, String>>()?
        };
        if alternatives.is_empty() {
            return Err(format!("request {name}: neither exactly nor firstAvailable is set"));
        }
        Ok(Self { name, alternatives })
    }

    fn least(&self) -> usize {
        let amounts = self.alternatives.iter().map(|alternative| match alternative.amount {
            Amount::Exactly(count) => count,
            Amount::All => 1,
        });
        amounts.min().unwrap_or(0)
    }
}

impl Alternative<'_> {
    /// The expressions that a device must match, each with what to call its place.
    pub fn expressions(&self) -> impl Iterator<Item = (&str, String)> {
        let class = self.class.metadata.name.as_deref().unwrap_or_default();
        let of_class = self.class.spec.selectors.iter().flatten().enumerate();
        let of_class = of_class.map(move |(i, selector)| (selector, format!("class {class}: selector #{i}")));
        let own = self.selectors.iter().enumerate();
        let own = own.map(|(i, selector)| (selector, format!("request {}: selector #{i}", self.name)));
        of_class.chain(own).filter_map(|(selector, place)| Some((selector.cel.as_ref()?.expression.as_str(), place)))
    }

    /// The taint that keeps this request from a device, if any.
    pub fn hindering_taint<'t>(&self, taints: Option<&'t Vec<DeviceTaint>>) -> Option<&'t DeviceTaint> {
        taints
            .into_iter()
            .flatten()
            .filter(|taint| matches!(taint.effect.as_str(), "NoSchedule" | "NoExecute"))
            .find(|taint| !self.tolerations.iter().any(|toleration| tolerates(toleration, taint)))
    }
}

fn tolerates(toleration: &DeviceToleration, taint: &DeviceTaint) -> bool {
    let set = |field: &Option<String>| field.as_ref().filter(|text| !text.is_empty()).cloned();
    set(&toleration.effect).is_none_or(|effect| effect == taint.effect)
        && set(&toleration.key).is_none_or(|key| key == taint.key)
        && match toleration.operator.as_deref() {
            Some("Exists") => true,
            None | Some("" | "Equal") => {
                toleration.value.as_deref().unwrap_or_default() == taint.value.as_deref().unwrap_or_default()
            }
            Some(_) => false,
        }
}

fn class<'a>(
    request: &str,
    name: &str,
    classes: &'a BTreeMap<String, Arc<DeviceClass>>,
) -> Result<&'a DeviceClass, String> {
    classes.get(name).map(AsRef::as_ref).ok_or_else(|| {
        format!("request {request}: could not retrieve device class {name}: deviceclass {name:?} not found")
    })
}

fn amount(request: &str, mode: Option<&str>, count: Option<i64>) -> Result<Amount, String> {
    match mode {
        None | Some("" | "ExactCount") => match count.unwrap_or(1) {
            0 => Ok(Amount::Exactly(1)),
            count => usize::try_from(count)
                .map(Amount::Exactly)
                .map_err(|_| format!("request {request}: count {count} is not a number of devices")),
        },
        Some("All") => Ok(Amount::All),
        Some(mode) => Err(format!("request {request}: unsupported count mode {mode}")),
    }
}

fn selectors<'a>(request: &str, selectors: Option<&'a [DeviceSelector]>) -> Result<&'a [DeviceSelector], String> {
    let selectors = selectors.unwrap_or_default();
    match selectors.iter().position(|selector| selector.cel.is_none()) {
        Some(i) => Err(format!("request {request}, selector #{i}: CEL expression empty (unsupported selector type?)")),
        None => Ok(selectors),
    }
}
