use k8s_openapi::api::resource::v1::{Device, DeviceAttribute, DeviceCapacity};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use heddle_core::inventory::Fabric;
use heddle_core::{names, slices};

use super::Selectors;

const DRIVER: &str = "gpu.nvidia.com";

fn device() -> Device {
    let string = |v: &str| DeviceAttribute { string: Some(v.into()), ..Default::default() };
    Device {
        name: "gpu-0".into(),
        attributes: Some(
            [
                ("type".to_owned(), string("gpu")),
                ("index".to_owned(), DeviceAttribute { int: Some(3), ..Default::default() }),
                ("healthy".to_owned(), DeviceAttribute { bool: Some(true), ..Default::default() }),
                (
                    "driverVersion".to_owned(),
                    DeviceAttribute { version: Some("580.10.2".into()), ..Default::default() },
                ),
                ("resource.kubernetes.io/pcieRoot".to_owned(), string("pci0000:00")),
            ]
            .into(),
        ),
        capacity: Some(
            [("memory".to_owned(), DeviceCapacity { value: Quantity("80Gi".into()), ..Default::default() })].into(),
        ),
        ..Default::default()
    }
}

fn evaluate(expression: &str) -> Result<bool, String> {
    Selectors::default().matches(expression, DRIVER, &device(), None)
}

#[test]
fn selectors_of_the_field_are_understood() {
    for expression in [
        r#"device.driver == "gpu.nvidia.com""#,
        r#"device.attributes["gpu.nvidia.com"].type == "gpu""#,
        r#"device.attributes["gpu.nvidia.com"]["type"] == "gpu""#,
        r#"device.driver == "gpu.nvidia.com" && device.attributes["gpu.nvidia.com"].type == "gpu""#,
        r#"device.attributes["gpu.nvidia.com"].index == 3"#,
        r#"device.attributes["gpu.nvidia.com"].index in [1, 2, 3]"#,
        r#"device.attributes["gpu.nvidia.com"].index <= 3"#,
        r#"device.attributes["gpu.nvidia.com"].healthy"#,
        r#"device.attributes["gpu.nvidia.com"].type.startsWith("gp")"#,
        r#"device.attributes["gpu.nvidia.com"].type.matches("^g.u$")"#,
        r#"device.attributes["gpu.nvidia.com"].type.lowerAscii() == "gpu""#,
        r#"device.attributes["resource.kubernetes.io"].pcieRoot == "pci0000:00""#,
        r#"device.attributes["gpu.nvidia.com"].driverVersion.compareTo(semver("570.158.1")) >= 0"#,
        r#"device.attributes["gpu.nvidia.com"].driverVersion.isGreaterThan(semver("570.0.0"))"#,
        r#"device.attributes["gpu.nvidia.com"].driverVersion.isLessThan(semver("600.0.0"))"#,
        r#"device.attributes["gpu.nvidia.com"].driverVersion == semver("580.10.2")"#,
        r#"device.attributes["gpu.nvidia.com"].driverVersion.major() == 580"#,
        r#"isSemver("1.2.3") && !isSemver("1.2")"#,
        r#"device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("40Gi")) > 0"#,
        r#"device.capacity["gpu.nvidia.com"].memory.isGreaterThan(quantity("79Gi"))"#,
        r#"device.capacity["gpu.nvidia.com"].memory == quantity("81920Mi")"#,
        r#"quantity("1k").sub(1).asInteger() == 999 && quantity("1k").isInteger()"#,
        r#"cel.bind(gpu, device.attributes["gpu.nvidia.com"], gpu.type == "gpu" && gpu.healthy)"#,
        r#""gpu.nvidia.com" in device.attributes"#,
        r#"device.attributes["gpu.nvidia.com"].?absent.orValue("x") == "x""#,
        r#"!device.allowMultipleAllocations"#,
    ] {
        assert_eq!(evaluate(expression), Ok(true), "{expression}");
    }
}

#[test]
fn a_missing_domain_is_empty_and_a_missing_name_is_an_error() {
    assert_eq!(evaluate(r#""other.example.com" in device.attributes"#), Ok(false));
    assert_eq!(evaluate(r#"has(device.attributes["other.example.com"].x)"#), Ok(false));
    assert_eq!(evaluate(r#"has(device.attributes["gpu.nvidia.com"].absent)"#), Ok(false));
    assert_eq!(evaluate(r#"has(device.attributes["gpu.nvidia.com"].type)"#), Ok(true));
    assert_eq!(evaluate(r#""x" in device.attributes["other.example.com"]"#), Ok(false));
    for expression in [
        r#"device.attributes["other.example.com"].x == 1"#,
        r#"device.attributes["gpu.nvidia.com"].absent == "x""#,
        r#"device.capacity["gpu.nvidia.com"].absent.isGreaterThan(quantity("1"))"#,
    ] {
        let error = evaluate(expression).unwrap_err();
        assert!(
            error.contains("runtime error") && error.to_lowercase().contains("no such key"),
            "{expression}: {error}"
        );
    }
}

#[test]
fn short_circuits_guard_what_would_fail() {
    let guarded = r#"device.driver == "other" && device.attributes["other"].x == 1"#;
    assert_eq!(evaluate(guarded), Ok(false));
}

#[test]
fn a_bad_expression_says_what_is_wrong() {
    assert!(evaluate("device.driver ==").unwrap_err().contains("compile error"));
    assert!(evaluate("device.driver").unwrap_err().contains("expected a bool"));
    assert!(evaluate("nothing == 1").unwrap_err().contains("nothing"));
    assert!(evaluate(&format!("{:10241}", "true")).unwrap_err().contains("longer"));
}

#[test]
fn the_template_of_an_exclusive_compute_domain_passes_by_slots_of_a_hosts_daemon() {
    let expression = slices::not_host_managed();
    let mut slots = slices::slots(1, &Fabric::None, None);
    let matches = |slot: &Device| Selectors::default().matches(&expression, names::DRIVER, slot, None);
    assert_eq!(matches(&slots[0]), Ok(true));
    slices::mark_host_managed(&mut slots);
    assert_eq!(matches(&slots[0]), Ok(false));
    let bare = Device { attributes: None, ..slots.remove(0) };
    assert_eq!(matches(&bare), Ok(true), "of another driver's making");
}
