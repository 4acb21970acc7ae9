//! A shell script in the place of `nvidia-imex`.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use heddle_actors::runner::{Isolation, Settings, Timing};

/// A daemon that does as files in its root say. It writes one line to `calls` for everything that happens to it.
pub const DAEMON: &str = r#"#!/bin/sh
root=ROOT
echo "start $(cat $root/run/hosts | grep heddle | tr '\n' ' ')" >> $root/calls
trap 'echo term >> $root/calls; [ -e $root/stubborn ] || exit 0' TERM
trap 'echo usr1 $(grep -c 10.0.0.9 $root/run/hosts) >> $root/calls' USR1
if [ -e $root/in-use ]; then
  echo "[Nov 30 2026 02:29:32] [ERROR] [tid 1] Failed to allocate Imex session: NV_ERR_IN_USE" >&2
  exit 1
fi
if [ -e $root/broken ]; then
  echo "[Nov 30 2026 02:29:32] [ERROR] [tid 1] No matching network interface found" >&2
  exit 3
fi
echo "[Nov 30 2026 02:29:32] [INFO] [tid 1] Identified this node as ID 1" >&2
while :; do sleep 0.02; done
"#;

/// Its control tool: says what the file `word` says.
pub const CTL: &str = r#"#!/bin/sh
root=ROOT
if [ "$1" = -N ]; then
  echo '{"nodes":{"1":{"status":"READY","version":"595.1","connections":{"0":{"status":"CONNECTED"},"1":{"status":"CONNECTED"}}}},"status":"UP"}'
  exit
fi
[ -e $root/hangs ] && exec sleep 60
cat $root/word
"#;

/// A patience that suits tests.
pub fn settings(root: &Path) -> Settings {
    Settings {
        dir: root.join("run"),
        socket: root.join("run/runner.sock"),
        driver_root: root.join("driver"),
        isolation: Isolation::None { hosts_file: root.join("run/hosts"), command_socket: root.join("run/imex.sock") },
        settings: BTreeMap::new(),
        peer_port: 0,
        metrics: None,
        timing: Timing {
            signal_window: Duration::from_millis(300),
            stop_limit: Duration::from_millis(300),
            backoff_min: Duration::from_millis(20),
            backoff_max: Duration::from_millis(80),
            poll_starting: Duration::from_millis(20),
            poll_ready: Duration::from_millis(50),
            query_limit: Duration::from_millis(300),
            ..Default::default()
        },
    }
}

/// Writes a program below `root`.
pub fn script(root: &Path, name: &str, text: &str) {
    let path: PathBuf = root.join("driver/usr/bin").join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    // By a process of its own: a file that a fork of another test holds open for writing cannot be executed.
    let mut shell = Command::new("sh")
        .args(["-c", r#"cat > "$1" && chmod 755 "$1""#, "sh"])
        .arg(&path)
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    shell.stdin.take().unwrap().write_all(text.replace("ROOT", &root.display().to_string()).as_bytes()).unwrap();
    assert!(shell.wait().unwrap().success());
}

/// A folder with both programs and a daemon that is READY.
pub fn root() -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    script(root.path(), "nvidia-imex", DAEMON);
    script(root.path(), "nvidia-imex-ctl", CTL);
    fs::write(root.path().join("word"), "READY\n").unwrap();
    root
}

/// Whether a process runs. One that has ended stays in the list until somebody has asked for its end.
pub fn alive(pid: u32) -> bool {
    let stat = fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with('Z'))
}
