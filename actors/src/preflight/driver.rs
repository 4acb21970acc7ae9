use std::os::unix::fs::PermissionsExt;

use heddle_core::api::ImexMode;
use heddle_core::inventory::{Inventory, inventory};
use heddle_core::preflight::{DriverFacts, NEEDED, OPTIONAL, ProgramFacts};

use super::Settings;
use crate::nvml::Library;

/// The library, and what it says of the GPUs.
pub(super) fn look(settings: &Settings) -> (DriverFacts, Result<Inventory, String>) {
    let root = &settings.driver_root;
    let library = Library::open(root).map_err(|failure| failure.to_string());
    let read = match &library {
        Ok(library) => library.read().map_err(|failure| failure.to_string()),
        Err(_) => Err("the GPUs cannot be read".into()),
    };
    let facts = DriverFacts {
        root: root.display().to_string(),
        is_there: root.is_dir(),
        library: library.map(|library| library.lacks(NEEDED.into_iter().chain(OPTIONAL))),
    };
    (facts, read.map(|reading| inventory(&reading, settings.access)))
}

/// The programs that the runner starts, or the agent where the host runs the daemon.
pub(super) fn programs(settings: &Settings) -> ProgramFacts {
    let folder = settings.driver_root.join("usr/bin");
    let runs = |name: &&str| {
        let found = std::fs::metadata(folder.join(name));
        found.is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
    };
    let needed: &[&str] = match settings.imex_mode {
        ImexMode::DriverManaged => &["nvidia-imex", "nvidia-imex-ctl"],
        ImexMode::HostManaged => &["nvidia-imex-ctl"],
    };
    let missing = needed.iter().copied().filter(|name| !runs(name)).map(str::to_owned).collect();
    ProgramFacts { needed: needed.join(" and "), missing, folder: folder.display().to_string() }
}
