use super::Line;
use crate::inventory::Inventory;

/// The driver's files.
#[derive(Clone, Debug)]
pub struct DriverFacts {
    /// The driver root.
    pub root: String,
    /// Whether it is a folder.
    pub is_there: bool,
    /// Symbols of the library that are missing; or why it cannot be used.
    pub library: Result<Vec<String>, String>,
}

/// Without these nothing is known of the GPUs.
pub const NEEDED: [&str; 6] = [
    "nvmlInit_v2",
    "nvmlShutdown",
    "nvmlDeviceGetCount_v2",
    "nvmlDeviceGetHandleByIndex_v2",
    "nvmlDeviceGetUUID",
    "nvmlDeviceGetPciInfo_v3",
];

/// Without these something is not told: the fabric, what NVML says must be done, errors of a GPU.
pub const OPTIONAL: [&str; 5] = [
    "nvmlSystemGetDriverVersion",
    "nvmlDeviceGetGpuFabricInfoV",
    "nvmlDeviceGetFieldValues",
    "nvmlDeviceGetModuleId",
    "nvmlEventSetWait_v2",
];

/// The first driver whose daemon resolves the names of its node map again when it is signalled.
const LEAST: (u32, u32, u32) = (570, 158, 1);

pub(super) fn check(facts: &DriverFacts, inventory: Option<&Inventory>) -> Vec<Line> {
    let root = &facts.root;
    let mut lines = vec![match facts.is_there {
        true => Line::ok("driver-root", format!("the driver root is {root}")),
        false => Line::fail(
            "driver-root",
            format!("the driver root {root} is no folder"),
            "set --driver-root to where the NVIDIA driver is: / or, with the GPU Operator's driver, /run/nvidia/driver",
        ),
    }];
    lines.push(library(facts));
    lines.extend(inventory.map(|inventory| version(&inventory.driver_version)));
    lines
}

fn library(facts: &DriverFacts) -> Line {
    let missing = match &facts.library {
        Err(why) => return Line::fail("nvml", why, "without it no GPU and no fabric is known"),
        Ok(missing) => missing,
    };
    if missing.is_empty() {
        return Line::ok("nvml", "the NVIDIA management library has every symbol that is called");
    }
    let found = format!("the NVIDIA management library lacks {}", missing.join(", "));
    match missing.iter().any(|symbol| NEEDED.contains(&symbol.as_str())) {
        true => Line::fail("nvml", found, "install a newer NVIDIA driver"),
        false => Line::warn("nvml", found, "what these tell is not known: install a newer NVIDIA driver"),
    }
}

fn version(version: &str) -> Line {
    let mut numbers = version.split('.').map(|part| part.parse::<u32>().ok());
    let number = (|| Some((numbers.next()??, numbers.next()??, numbers.next().flatten().unwrap_or_default())))();
    match number {
        Some(number) if number >= LEAST => Line::ok("driver-version", format!("the NVIDIA driver is {version}")),
        Some(_) => Line::fail(
            "driver-version",
            format!("the NVIDIA driver is {version}, and its IMEX daemon does not follow a peer to a new address"),
            "install 570.158.01 or newer",
        ),
        None => Line::warn("driver-version", format!("NVML calls the driver's version {version:?}"), "see nvidia-smi"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::graded;
    use super::*;

    #[test]
    fn each_outcome() {
        let lack = |symbols: &[&str]| Ok(symbols.iter().map(|symbol| (*symbol).to_owned()).collect());
        for (is_there, library, version, expected) in [
            (true, lack(&[]), "570.158.01", ["Ok driver-root", "Ok nvml", "Ok driver-version"]),
            (true, lack(&["nvmlEventSetWait_v2"]), "595.45.04", ["Ok driver-root", "Warn nvml", "Ok driver-version"]),
            (true, lack(&["nvmlInit_v2"]), "570.133.20", ["Ok driver-root", "Fail nvml", "Fail driver-version"]),
            (false, Err("no libnvidia-ml.so.1".into()), "", ["Fail driver-root", "Fail nvml", "Warn driver-version"]),
        ] {
            let facts = DriverFacts { root: "/run/nvidia/driver".into(), is_there, library };
            let inventory = Inventory { driver_version: version.into(), ..Inventory::default() };
            assert_eq!(graded(&check(&facts, Some(&inventory))), expected);
        }
        let facts = DriverFacts { root: "/".into(), is_there: true, library: Ok(Vec::new()) };
        assert_eq!(check(&facts, None).len(), 2, "no version where NVML does not answer");
    }
}
