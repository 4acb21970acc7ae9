//! CEL selectors of DeviceClasses and requests, evaluated on a device as the scheduler does.

mod functions;
mod lookup;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, LazyLock};

use cel::common::types::{CelBool, CelInt, CelMap, CelMapKey, CelString};
use cel::common::value::Val;
use cel::{Context, Env, Program, Value};
use k8s_openapi::api::resource::v1::{Device, DeviceAttribute};

use functions::{QuantityVal, VersionVal};
use lookup::Domains;

use super::quantity::Quantity;

static ENV: LazyLock<Arc<Env>> = LazyLock::new(|| Arc::new(functions::environment()));

/// Longest expression that the API accepts.
const MAX_LENGTH: usize = 10 * 1024;

/// Expressions compiled once, and what they said about devices that have not changed since.
#[derive(Default)]
pub struct Selectors {
    programs: HashMap<String, Result<Arc<Program>, String>>,
    answers: HashMap<(String, DeviceVersion), Result<bool, String>>,
}

/// One state of one device: equal keys mean equal content. The slice's name would do if slices could not be
/// replaced under one name, so the UID stands here.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DeviceVersion {
    /// UID of the slice, or its name where there is no UID (in tests).
    pub slice: String,
    /// Resource version of the slice.
    pub version: String,
    /// The device's place in the slice.
    pub index: usize,
}

/// Answers kept before the memory is cleared: some thousand devices under several expressions.
const MAX_ANSWERS: usize = 65_536;

impl Selectors {
    /// Does `device` of `driver` match `expression`?
    ///
    /// # Errors
    /// A sentence when the expression does not compile, fails on this device (a missing attribute, for instance)
    /// or gives something that is no bool.
    pub fn matches(
        &mut self,
        expression: &str,
        driver: &str,
        device: &Device,
        version: Option<DeviceVersion>,
    ) -> Result<bool, String> {
        let key = version.map(|version| (expression.to_owned(), version));
        if let Some(answer) = key.as_ref().and_then(|key| self.answers.get(key)) {
            return answer.clone();
        }
        let program = self
            .programs
            .entry(expression.to_owned())
            .or_insert_with(|| compile(expression).map(Arc::new))
            .clone()
            .map_err(|e| format!("CEL compile error: {e}"))?;
        let answer = evaluate(&program, driver, device).map_err(|e| format!("CEL runtime error: {e}"));
        if let Some(key) = key {
            if self.answers.len() >= MAX_ANSWERS {
                self.answers.clear();
            }
            self.answers.insert(key, answer.clone());
        }
        answer
    }
}

/// Whether an expression compiles.
///
/// # Errors
/// Why it does not.
pub fn check(expression: &str) -> Result<(), String> {
    compile(expression).map(drop)
}

fn compile(expression: &str) -> Result<Program, String> {
    if expression.len() > MAX_LENGTH {
        return Err(format!("the expression is longer than {MAX_LENGTH} bytes"));
    }
    ENV.compile(expression).map_err(|e| e.to_string())
}

fn evaluate(program: &Program, driver: &str, device: &Device) -> Result<bool, String> {
    let mut context = Context::with_env(Arc::clone(&ENV));
    context.add_variable_as_val("device", Box::new(device_value(driver, device)?));
    match program.execute(&context) {
        Ok(Value::Bool(answer)) => Ok(answer),
        Ok(other) => Err(format!("the expression gave a {}, expected a bool", other.type_of())),
        Err(error) => Err(error.to_string()),
    }
}

fn device_value(driver: &str, device: &Device) -> Result<CelMap<'static>, String> {
    let mut attributes: BTreeMap<String, CelMap<'static>> = BTreeMap::new();
    for (name, attribute) in device.attributes.iter().flatten() {
        let value = attribute_value(attribute).map_err(|e| format!("attribute {name}: {e}"))?;
        insert(&mut attributes, driver, name, value);
    }
    let mut capacity: BTreeMap<String, CelMap<'static>> = BTreeMap::new();
    for (name, entry) in device.capacity.iter().flatten() {
        let value = Quantity::parse(&entry.value.0).ok_or_else(|| format!("capacity {name}: not a quantity"))?;
        insert(&mut capacity, driver, name, Box::new(QuantityVal(value)));
    }
    let shared = device.allow_multiple_allocations.unwrap_or(false);
    Ok(map([
        ("driver", Box::new(CelString::from(driver.to_owned())) as Box<dyn Val>),
        ("attributes", Box::new(Domains(attributes))),
        ("capacity", Box::new(Domains(capacity))),
        ("allowMultipleAllocations", Box::new(CelBool::from(shared))),
    ]))
}

/// Files a value under its domain: the driver's own where the name has none.
fn insert(domains: &mut BTreeMap<String, CelMap<'static>>, driver: &str, name: &str, value: Box<dyn Val>) {
    let (domain, id) = name.split_once('/').unwrap_or((driver, name));
    let inner = domains.remove(domain).unwrap_or_default();
    let mut inner = inner.into_inner();
    inner.insert(CelMapKey::from(id.to_owned()), value);
    domains.insert(domain.to_owned(), CelMap::from(inner));
}

fn attribute_value(attribute: &DeviceAttribute) -> Result<Box<dyn Val>, String> {
    if let Some(value) = attribute.int {
        Ok(Box::new(CelInt::from(value)))
    } else if let Some(value) = attribute.bool {
        Ok(Box::new(CelBool::from(value)))
    } else if let Some(value) = &attribute.string {
        Ok(Box::new(CelString::from(value.clone())))
    } else if let Some(value) = &attribute.version {
        let version = semver::Version::parse(value).map_err(|e| format!("not a semantic version: {e}"))?;
        Ok(Box::new(VersionVal(version)))
    } else {
        Err("unsupported attribute value".into())
    }
}

fn map<const N: usize>(entries: [(&'static str, Box<dyn Val>); N]) -> CelMap<'static> {
    let entries: HashMap<CelMapKey<'static>, Box<dyn Val>> =
        entries.into_iter().map(|(key, value)| (CelMapKey::from(key), value)).collect();
    CelMap::from(entries)
}

#[cfg(test)]
mod tests;
