//! What NVIDIA's own programs must do as well: one node without GPUs on loopback, no fake folder looked at.
//!
//! `HEDDLE_IMEX_PROGRAMS` names the folder of other `nvidia-imex` and `nvidia-imex-ctl` to be tried.

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Output, Stdio};

use heddle_integration::imex::os::OS_ENV;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::process::{Child, Command};

use crate::rack::{PATIENCE, PROGRAM};

const ADDRESS: &str = "127.0.0.1";

struct Host {
    folder: TempDir,
}

impl Host {
    /// With this map, on ports of its own.
    fn new(map: &str, more: &str) -> Self {
        let host = Self { folder: TempDir::with_prefix("imex").unwrap() };
        let free = || TcpListener::bind((ADDRESS, 0)).unwrap();
        let (server, command) = (free(), free());
        let [server, command] = [server, command].map(|listener| listener.local_addr().unwrap().port());
        let config = format!(
            "DAEMONIZE=0\nLOG_FILE_NAME={}\nSERVER_PORT={server}\nIMEX_NODE_CONFIG_FILE={}\nIMEX_CMD_ENABLED=1\n\
             IMEX_CMD_PORT={command}\nIMEX_CMD_UNIX_DOMAIN_PATH={}\n{more}",
            host.path("imex.log").display(),
            host.path("nodes.cfg").display(),
            host.path("imex.sock").display(),
        );
        for (name, text) in [("nodes.cfg", map), ("imex.cfg", &*config)] {
            std::fs::write(host.path(name), text).unwrap();
        }
        // For the fake alone.
        std::fs::create_dir(host.path("net")).unwrap();
        std::fs::create_dir(host.path("run")).unwrap();
        std::fs::write(host.path("net/addresses"), ADDRESS).unwrap();
        host
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn command(&self, program: &str) -> Command {
        let mut command = match std::env::var_os("HEDDLE_IMEX_PROGRAMS") {
            Some(folder) => Command::new(PathBuf::from(folder).join(program)),
            None => {
                let mut fake = Command::new(PROGRAM);
                fake.arg(program);
                fake
            }
        };
        command.env(OS_ENV, self.folder.path()).kill_on_drop(true);
        command
    }

    fn start(&self) -> Child {
        let mut command = self.command("nvidia-imex");
        command.arg("-c").arg(self.path("imex.cfg")).arg("--nogpu").stderr(Stdio::null()).spawn().unwrap()
    }

    async fn ctl(&self, args: &[&str]) -> Output {
        tokio::time::timeout(PATIENCE, self.command("nvidia-imex-ctl").args(args).output()).await.unwrap().unwrap()
    }

    async fn ready(&self) {
        let socket = self.path("imex.sock").display().to_string();
        let ready = async { while self.ctl(&["-q", "-u", &socket]).await.stdout != b"READY\n" {} };
        tokio::time::timeout(PATIENCE, ready).await.unwrap();
    }
}

fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_raw(child.id().unwrap().cast_signed()).unwrap(), signal).unwrap();
}

async fn exit(child: &mut Child) -> Option<i32> {
    tokio::time::timeout(PATIENCE, child.wait()).await.unwrap().unwrap().code()
}

#[tokio::test]
async fn a_node_alone_is_ready_and_its_domain_up() {
    let host = Host::new(&format!("{ADDRESS}\n"), "");
    let mut daemon = host.start();
    host.ready().await;
    let socket = host.path("imex.sock").display().to_string();
    let asked = host.ctl(&["-q", &format!("--u={socket}")]).await;
    assert_eq!((asked.status.code(), &*asked.stdout, &*asked.stderr), (Some(0), &b"READY\n"[..], &b""[..]));

    let config = host.path("imex.cfg").display().to_string();
    let domain = String::from_utf8(host.ctl(&["-N", "-j", "-c", &config]).await.stdout).unwrap();
    let domain: serde_json::Value = serde_json::from_str(&domain).unwrap();
    let node = &domain["nodes"]["0"];
    assert_eq!(
        [&domain["status"], &node["status"], &node["version"], &node["host"]],
        ["UP", "READY", "NO_GPU", ADDRESS]
    );
    assert_eq!(node["connections"]["0"]["status"], "CONNECTED");
    assert!(domain["timestamp"].is_string() && node["changed"].is_boolean() && node["hostName"].is_string());
    let table = String::from_utf8(host.ctl(&["-N", "-c", &config]).await.stdout).unwrap();
    assert!(table.contains("Node #0") && table.contains("Domain State: UP"), "{table}");

    // Connections are made anew, and the daemon lives on.
    signal(&daemon, Signal::USR1);
    signal(&daemon, Signal::HUP);
    host.ready().await;
    assert_eq!(daemon.try_wait().unwrap(), None);
    signal(&daemon, Signal::TERM);
    assert_eq!(exit(&mut daemon).await, Some(0));
    let gone = host.ctl(&["-q", "-u", &socket]).await;
    assert!(!gone.status.success() && gone.stdout != b"READY\n");
}

#[tokio::test]
async fn who_is_not_in_the_map_does_not_run() {
    // Of the range for documentation: nobody has it.
    let mut daemon = Host::new("192.0.2.1\n", "").start();
    assert_ne!(exit(&mut daemon).await, Some(0));
}

#[tokio::test]
async fn authentication_without_a_source_or_a_mode_does_not_run() {
    for wrong in [
        "IMEX_AUTH_ENCRYPTION_MODE=SSL_TLS\nIMEX_AUTH_SOURCE=\n",
        "IMEX_AUTH_ENCRYPTION_MODE=\nIMEX_AUTH_SOURCE=FILE\n",
    ] {
        let host = Host::new(&format!("{ADDRESS}\n"), &format!("IMEX_ENABLE_AUTH_ENCRYPTION=1\n{wrong}"));
        let mut daemon = host.start();
        assert_ne!(exit(&mut daemon).await, Some(0), "{wrong}");
    }
}

#[tokio::test]
async fn who_is_asked_is_said_once() {
    let host = Host::new(&format!("{ADDRESS}\n"), "");
    let config = host.path("imex.cfg").display().to_string();
    assert!(!host.ctl(&["-q", "-u", "/nowhere", "-c", &config]).await.status.success());
    assert!(!host.ctl(&["-N", "-u", "/nowhere"]).await.status.success());
}
