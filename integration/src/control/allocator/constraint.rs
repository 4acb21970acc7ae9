//! What must hold between the devices of a claim.

use k8s_openapi::api::resource::v1::{Device, DeviceAttribute, DeviceConstraint};

/// `matchAttribute`: all devices of the named requests (of all, if none is named) have one value.
#[derive(Clone, Debug)]
pub struct Constraint {
    attribute: String,
    requests: Vec<String>,
}

impl Constraint {
    /// Reads a constraint.
    ///
    /// # Errors
    /// A sentence if it is of a kind that is not known.
    pub fn of(constraint: &DeviceConstraint) -> Result<Self, String> {
        let attribute = constraint.match_attribute.clone().ok_or("empty constraint (unsupported constraint type?)")?;
        Ok(Self { attribute, requests: constraint.requests.clone().unwrap_or_default() })
    }

    /// Is a device for `request` (and its alternative `full`, which is `request/sub` or the same) bound by it?
    pub fn covers(&self, request: &str, full: &str) -> bool {
        self.requests.is_empty() || self.requests.iter().any(|name| name == request || name == full)
    }

    /// May `device` join `others`, the devices that were picked before and are covered?
    pub fn allows(&self, driver: &str, device: &Device, first: Option<(&str, &Device)>) -> bool {
        let Some(value) = lookup(device, driver, &self.attribute) else { return false };
        match first {
            None => true,
            Some((driver, first)) => lookup(first, driver, &self.attribute) == Some(value),
        }
    }
}

/// An attribute by its full name: as it stands, or without the domain if that is the driver's.
fn lookup<'a>(device: &'a Device, driver: &str, full: &str) -> Option<&'a DeviceAttribute> {
    let attributes = device.attributes.as_ref()?;
    attributes.get(full).or_else(|| {
        let (domain, id) = full.split_once('/')?;
        (domain == driver).then(|| attributes.get(id)).flatten()
    })
}
