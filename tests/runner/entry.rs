//! `heddle imex-enter` by itself.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::json;

use crate::rig::{DRIVER_ROOT, HEDDLE, may_isolate};

/// A runner's folder as far as an entry needs it.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for name in ["root", "daemon", "persist"] {
        fs::create_dir(folder.path().join(name)).unwrap();
    }
    fs::write(folder.path().join("daemon/hosts"), "127.0.0.7 of-the-runner\n").unwrap();
    folder
}

fn entry(driver_root: &Path, folder: &Path, also: &[&Path], command: &[&str]) -> String {
    let root = json!({
        "driverRoot": driver_root, "build": folder.join("root"), "also": also, "host": null, "nameservers": ["10.9.9.9"],
        "folders": [
            {"from": folder.join("daemon"), "at": "/run/heddle", "readOnly": true},
            {"from": folder.join("persist"), "at": "/run/nvidia-imex", "readOnly": false},
        ],
    });
    json!({"root": [root, command]}).to_string()
}

fn text(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[test]
fn the_driver_root_may_be_the_very_root() {
    if !may_isolate() {
        return;
    }
    let folder = folder();
    let also = tempfile::tempdir().unwrap();
    fs::write(also.path().join("note"), "seen\n").unwrap();
    let script = format!(
        "getent hosts of-the-runner; cat /etc/resolv.conf /var/run/heddle/hosts {0}/note; ls -d /proc/self /sys/kernel /dev/null; \
         ls -A / /run /tmp; touch {0}/written; echo x > /run/nvidia-imex/persist.dat; touch /usr/bin/x || echo refused; \
         grep -c {1} /proc/self/mountinfo",
        also.path().display(),
        "/root/",
    );
    let entry = entry(Path::new("/"), folder.path(), &[also.path()], &["/bin/sh", "-c", &script]);
    let output = Command::new(HEDDLE).args(["imex-enter", &entry]).env("LD_LIBRARY_PATH", "/nowhere").output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    for line in [
        "127.0.0.7       of-the-runner",
        "127.0.0.7 of-the-runner",
        "nameserver 10.9.9.9",
        "seen",
        "/dev/null",
        "refused",
    ] {
        assert!(said.lines().any(|one| one == line), "{line}: {output:?}");
    }
    assert!(!said.lines().any(|line| ["home", "mnt", "systemd"].contains(&line)), "{said}");
    assert!(said.ends_with("\n0\n"), "the root is not seen within itself, nor what was there before: {said}");
    assert!(also.path().join("written").exists());
    assert_eq!(fs::read_to_string(folder.path().join("persist/persist.dat")).unwrap(), "x\n");
    assert!(!Path::new("/usr/bin/x").exists());
}

/// As the seccomp profiles of container runtimes do, also for those who have `SYS_ADMIN`.
const WITHOUT_PIVOT_ROOT: &str = "
import ctypes, os, platform, struct, sys
number = {'x86_64': 155, 'aarch64': 41}[platform.machine()]
program = b''.join(struct.pack('HBBI', *step) for step in [
    (0x20, 0, 0, 0),              # load the number of the call
    (0x15, 0, 1, number),         # pivot_root?
    (0x06, 0, 0, 0x00050000 | 1), # EPERM
    (0x06, 0, 0, 0x7fff0000),     # allowed
])
code = ctypes.create_string_buffer(program, len(program))
filter = struct.pack('HxxxxxxP', 4, ctypes.addressof(code))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, filter) == 0, ctypes.get_errno()
os.execv(sys.argv[1], sys.argv[1:])
";

#[test]
fn the_old_root_is_left_without_pivot_root_too() {
    if !may_isolate() {
        return;
    }
    let folder = folder();
    let entry = entry(&DRIVER_ROOT, folder.path(), &[], &["/usr/bin/nvidia-imex", "--version"]);
    let output =
        Command::new("python3").args(["-c", WITHOUT_PIVOT_ROOT, HEDDLE, "imex-enter", &entry]).output().unwrap();
    assert!(text(&output).starts_with("IMEX version is"), "{output:?}");
}

#[test]
fn what_is_in_the_way_is_said() {
    if !may_isolate() {
        return;
    }
    let folder = folder();
    let fails = |entry: &str| {
        let output = Command::new(HEDDLE).args(["imex-enter", entry]).output().unwrap();
        assert!(!output.status.success());
        let said = String::from_utf8(output.stderr).unwrap();
        let line = said.lines().rev().find_map(|line| line.strip_prefix("heddle imex-enter: "));
        line.unwrap_or_else(|| panic!("{said}")).to_owned()
    };
    let with = |root: &str, command: &[&str]| entry(Path::new(root), folder.path(), &[], command);
    assert!(fails(&with("/nowhere", &["/bin/true"])).contains("/nowhere cannot be opened"));
    assert!(
        fails(&with("/", &["/usr/bin/no-program"]))
            .contains("/usr/bin/no-program of the driver root / cannot be started")
    );
    let also = entry(Path::new("/"), folder.path(), &[Path::new("/no/keytab")], &["/bin/true"]);
    assert!(fails(&also).contains("/no/keytab cannot be opened"));
    // Nothing is made in a driver root, also where it could be.
    let small = folder.path().join("small");
    fs::create_dir_all(small.join("usr/bin")).unwrap();
    let said = fails(&entry(&small, folder.path(), &[Path::new("/usr/lib")], &["/bin/true"]));
    assert!(said.contains("/usr/lib is not in the driver root, and nothing is made there"), "{said}");
    assert!(!small.join("usr/lib").exists());
    fs::remove_dir(folder.path().join("root")).unwrap();
    assert!(fails(&with("/", &["/bin/true"])).contains("no tmpfs can be mounted"));
    let gone = json!({"join": [{"pid": std::process::id(), "startTime": 1}, ["/bin/true"]]}).to_string();
    assert!(fails(&gone).contains("has ended") || fails(&gone).contains("not entered its root"));
    assert!(fails("nonsense").contains("a command of Heddle's own"));
}
