//! A process of its own for a test that loads the fake NVML library: the place of its scenario is said by the
//! environment, which a process cannot change while others read it.

use std::path::Path;
use std::process::Command;

use heddle_fake_nvml::SCENARIO_ENV;

/// Runs the body in a process of its own, with a folder and the place of the scenario in it. `test` is the name of the
/// test that calls this.
pub fn in_own_process(test: &str, body: impl FnOnce(&Path, &Path)) {
    if let Some(scenario) = std::env::var_os(SCENARIO_ENV) {
        let scenario = Path::new(&scenario);
        return body(scenario.parent().unwrap(), scenario);
    }
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(SCENARIO_ENV, folder.path().join("nvml.json"))
        .output()
        .unwrap();
    let ran = String::from_utf8_lossy(&output.stdout).contains("1 passed");
    assert!(output.status.success() && ran, "{}", String::from_utf8_lossy(&output.stderr));
}
