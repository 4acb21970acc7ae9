use serde::{Deserialize, Serialize};

use super::AllocationMode;
use crate::fault::{Fault, reason};
use crate::names;

/// The opaque config of a channel claim. The existing driver's fields, plus the ComputeDomain's name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ChannelConfig {
    /// `resource.nvidia.com/v1beta1`.
    pub api_version: String,
    /// `ComputeDomainChannelConfig`.
    pub kind: String,
    /// UID of the ComputeDomain.
    #[serde(rename = "domainID")]
    pub domain_id: String,
    /// As in the ComputeDomain's spec; the spec decides.
    #[serde(default)]
    pub allocation_mode: AllocationMode,
    /// Name of the ComputeDomain, absent in templates of the existing driver.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compute_domain: Option<String>,
}

impl ChannelConfig {
    /// The config for a generated template.
    pub fn new(uid: &str, name: &str, mode: AllocationMode) -> Self {
        Self {
            api_version: names::COMPUTE_DOMAIN_API_VERSION.into(),
            kind: names::CHANNEL_CONFIG_KIND.into(),
            domain_id: uid.into(),
            allocation_mode: mode,
            compute_domain: Some(name.into()),
        }
    }

    /// Reads a claim's opaque parameters strictly.
    ///
    /// # Errors
    /// A permanent fault for an unknown field, another kind or version, or a `domainID` that is no UUID in its
    /// canonical, lower-case form: the value becomes part of keys, so there must be one spelling of it.
    pub fn decode(parameters: &serde_json::Value) -> Result<Self, Fault> {
        let invalid =
            |what: String| Fault::permanent(reason::INVALID_CONFIG, format!("the claim's opaque config {what}"));
        let config: Self =
            serde_json::from_value(parameters.clone()).map_err(|e| invalid(format!("cannot be read: {e}")))?;
        if config.api_version != names::COMPUTE_DOMAIN_API_VERSION || config.kind != names::CHANNEL_CONFIG_KIND {
            return Err(invalid(format!(
                "is {:.80} {:.80}, expected {} {}",
                config.api_version,
                config.kind,
                names::COMPUTE_DOMAIN_API_VERSION,
                names::CHANNEL_CONFIG_KIND
            )));
        }
        let canonical = uuid::Uuid::parse_str(&config.domain_id).map(|id| id.hyphenated().to_string());
        if canonical.as_ref() != Ok(&config.domain_id) {
            return Err(invalid(format!(
                "has domainID {:?}, expected the UID of a ComputeDomain (a lower-case UUID)",
                config.domain_id.chars().take(80).collect::<String>()
            )));
        }
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const UID: &str = "0b6fbb2e-7b1a-4a5c-9a53-6f3f5dfb2a11";

    fn sample() -> serde_json::Value {
        json!({"apiVersion": "resource.nvidia.com/v1beta1", "kind": "ComputeDomainChannelConfig", "domainID": UID})
    }

    #[test]
    fn a_config_of_the_existing_driver_is_read() {
        let config = ChannelConfig::decode(&sample()).unwrap();
        assert_eq!((config.domain_id.as_str(), config.allocation_mode), (UID, AllocationMode::Single));
    }

    #[test]
    fn what_is_not_exactly_a_config_is_refused() {
        for (field, value) in [
            ("domainID", json!("../../etc")),
            ("domainID", json!("")),
            ("domainID", json!(UID.to_uppercase())),
            ("domainID", json!(format!("{{{UID}}}"))),
            ("domainID", json!(7)),
            ("kind", json!("ComputeDomainDaemonConfig")),
            ("apiVersion", json!("resource.nvidia.com/v1")),
            ("channel", json!(7)),
        ] {
            let mut config = sample();
            config[field] = value;
            let fault = ChannelConfig::decode(&config).unwrap_err();
            assert_eq!(fault.class, crate::fault::Class::Permanent, "{field}: {fault}");
        }
        assert!(ChannelConfig::decode(&json!(null)).is_err());
    }
}
