//! The limits that a schema sets to numbers and sizes.

use serde_json::Value;

use super::status::FieldError;

/// Limits of one schema; what it does not say does not bound.
#[derive(Debug, Default)]
pub struct Bounds {
    minimum: Option<f64>,
    maximum: Option<f64>,
    exclusive_minimum: bool,
    exclusive_maximum: bool,
    multiple_of: Option<f64>,
    min_length: Option<u64>,
    max_length: Option<u64>,
    min_items: Option<u64>,
    max_items: Option<u64>,
    min_properties: Option<u64>,
    max_properties: Option<u64>,
}

impl Bounds {
    /// Reads them from a schema.
    pub fn read(schema: &Value) -> Self {
        let (real, whole) = (|name: &str| schema[name].as_f64(), |name: &str| schema[name].as_u64());
        Self {
            minimum: real("minimum"),
            maximum: real("maximum"),
            exclusive_minimum: schema["exclusiveMinimum"] == true,
            exclusive_maximum: schema["exclusiveMaximum"] == true,
            multiple_of: real("multipleOf"),
            min_length: whole("minLength"),
            max_length: whole("maxLength"),
            min_items: whole("minItems"),
            max_items: whole("maxItems"),
            min_properties: whole("minProperties"),
            max_properties: whole("maxProperties"),
        }
    }

    /// Checks a value.
    pub fn check(&self, value: &Value, path: &str, errors: &mut Vec<FieldError>) {
        match value {
            Value::Number(_) => self.check_number(value, path, errors),
            Value::String(text) => {
                let length = text.chars().count() as u64;
                let chars = "chars long";
                check_size(value, length, (self.min_length, self.max_length), chars, path, errors);
            }
            Value::Array(list) => {
                let size = list.len() as u64;
                check_size(&shorthand(value), size, (self.min_items, self.max_items), "items", path, errors);
            }
            Value::Object(map) => {
                let limits = (self.min_properties, self.max_properties);
                check_size(&shorthand(value), map.len() as u64, limits, "properties", path, errors);
            }
            _ => {}
        }
    }

    fn check_number(&self, value: &Value, path: &str, errors: &mut Vec<FieldError>) {
        let number = value.as_f64().unwrap_or_default();
        let mut refuse = |what: String| {
            errors.push(FieldError::invalid(path, value, format!("{path} in body should be {what}")));
        };
        match self.minimum {
            Some(least) if self.exclusive_minimum && number <= least => refuse(format!("greater than {least}")),
            Some(least) if number < least => refuse(format!("greater than or equal to {least}")),
            _ => {}
        }
        match self.maximum {
            Some(most) if self.exclusive_maximum && number >= most => refuse(format!("less than {most}")),
            Some(most) if number > most => refuse(format!("less than or equal to {most}")),
            _ => {}
        }
        if let Some(factor) = self.multiple_of.filter(|factor| number % factor != 0.0) {
            refuse(format!("a multiple of {factor}"));
        }
    }
}

fn check_size(
    value: &Value,
    size: u64,
    (least, most): (Option<u64>, Option<u64>),
    unit: &str,
    path: &str,
    errors: &mut Vec<FieldError>,
) {
    if let Some(least) = least.filter(|least| size < *least) {
        let detail = format!("{path} in body should be at least {least} {unit}");
        errors.push(FieldError::invalid(path, value, detail));
    }
    if let Some(most) = most.filter(|most| size > *most) {
        let message = format!("Too long: may not be more than {most} {unit}");
        errors.push(FieldError { message, ..FieldError::invalid(path, "", "") });
    }
}

/// Compound values are named by their type in messages, as the API server does.
pub fn shorthand(value: &Value) -> Value {
    match value {
        Value::Object(_) => "object".into(),
        Value::Array(_) => "array".into(),
        other => other.clone(),
    }
}
