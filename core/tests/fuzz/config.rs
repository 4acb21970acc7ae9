use heddle_core::api::ChannelConfig;
use heddle_core::fault::Class;
use serde_json::Value;

use super::bytes::{Edit, changed};

const GOOD: &str = r#"{"apiVersion":"resource.nvidia.com/v1beta1","kind":"ComputeDomainChannelConfig","domainID":"0b6fbb2e-7b1a-4a5c-9a53-6f3f5dfb2a11","allocationMode":"Single","computeDomain":"green"}"#;

/// Says whether it is a config.
fn judge(parameters: &Value) -> bool {
    match ChannelConfig::decode(parameters) {
        Ok(config) => {
            // It becomes part of keys: there is one spelling, and no path among them.
            let id = uuid::Uuid::parse_str(&config.domain_id).unwrap();
            assert_eq!(id.hyphenated().to_string(), config.domain_id);
            let again = serde_json::to_value(&config).unwrap();
            assert_eq!(ChannelConfig::decode(&again).unwrap(), config);
            let known = ["apiVersion", "kind", "domainID", "allocationMode", "computeDomain"];
            assert!(parameters.as_object().unwrap().keys().all(|key| known.contains(&key.as_str())), "{parameters}");
            true
        }
        Err(fault) => {
            assert_eq!(fault.class, Class::Permanent, "no retry mends what a tenant wrote: {fault}");
            assert!(fault.message.chars().count() < 1000 + 4 * parameters.to_string().len());
            false
        }
    }
}

#[test]
fn an_opaque_config_is_read_as_it_is_or_refused_for_good() {
    assert!(judge(&serde_json::from_str(GOOD).unwrap()));
    bolero::check!().with_type::<Vec<Edit>>().with_iterations(20_000).for_each(|edits| {
        if let Ok(parameters) = serde_json::from_slice(&changed(GOOD.as_bytes(), edits)) {
            judge(&parameters);
        }
    });
}

#[test]
fn a_field_of_any_text_is_the_right_one_or_refused() {
    let fields = ["apiVersion", "kind", "domainID", "allocationMode", "computeDomain", "other"];
    bolero::check!().with_type::<(u8, String)>().with_iterations(20_000).for_each(|(field, text)| {
        let mut parameters: Value = serde_json::from_str(GOOD).unwrap();
        let field = fields[*field as usize % fields.len()];
        let as_before = parameters[field] == text.as_str();
        parameters[field] = Value::String(text.clone());
        assert!(!judge(&parameters) || as_before || field == "computeDomain", "{parameters}");
    });
}
