//! The agent's process as its parent sees it, and the kubelet that calls it.

use std::process::Stdio;

use heddle_core::names;
use heddle_proto::dra::v1::dra_plugin_client::DraPluginClient;
use heddle_proto::dra::v1::{Claim, NodePrepareResourcesRequest, NodeUnprepareResourcesRequest};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use super::agent::{API, CUT, ROOT};
use super::{Node, settings};
use crate::bed::dial;

/// Name of the test that is the agent.
const TEST: &str = "crash::the_agent_s_own_process";

pub struct Process {
    child: Child,
    input: ChildStdin,
    said: Lines<BufReader<ChildStdout>>,
    socket: std::path::PathBuf,
}

impl Process {
    /// Starts an agent that is cut off before its `cut`-th call to the disk; none if it did not live to serve.
    pub async fn start(node: &Node, cut: Option<usize>) -> Option<Self> {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", TEST, "--nocapture"]).env(ROOT, &node.bed.paths.root).env(API, &node.api);
        if let Some(cut) = cut {
            command.env(CUT, cut.to_string());
        }
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        node.pid.store(child.id().unwrap().cast_signed(), std::sync::atomic::Ordering::SeqCst);
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let settings = settings(&node.bed.paths);
        let socket = settings.plugins_dir.join(names::DRIVER).join(format!("dra-{}.sock", settings.pod_uid));
        let mut process = Self { child, input, said: BufReader::new(output).lines(), socket };
        match process.hear().await.as_deref() {
            Some("ready") => Some(process),
            Some(other) => panic!("{other}"),
            None => {
                process.died().await;
                None
            }
        }
    }

    /// What it says next; none if it has ended.
    async fn hear(&mut self) -> Option<String> {
        while let Some(line) = self.said.next_line().await.unwrap() {
            if let Some(said) = line.strip_prefix('@') {
                return Some(said.to_owned());
            }
        }
        None
    }

    /// Tells it what [`super::agent`] understands; the calls to the disk since the last time.
    pub async fn tell(&mut self, what: &str) -> Vec<String> {
        self.input.write_all(format!("{what}\n").as_bytes()).await.unwrap();
        let answer = self.hear().await.expect("the agent has ended");
        answer.strip_prefix("seen ").unwrap().split_terminator(' ').map(str::to_owned).collect()
    }

    /// Kills it.
    pub async fn kill(mut self) {
        self.child.kill().await.unwrap();
    }

    /// Waits for its end, which must have been a cut.
    pub async fn died(mut self) {
        use std::os::unix::process::ExitStatusExt;
        let status = self.child.wait().await.unwrap();
        assert_eq!(status.signal(), Some(9), "it was to be cut off and ended by itself: {status}");
    }

    /// Whether it has ended.
    pub fn is_dead(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Cuts it off no more; whether it still lives.
    pub async fn disarm(&mut self) -> bool {
        self.input.write_all(b"watch\n").await.is_ok() && self.hear().await.is_some()
    }

    /// The CDI ids, or the error; that of the connection if it was cut off.
    pub async fn prepare(&self, claim: &Claim) -> Result<Vec<String>, String> {
        let request = NodePrepareResourcesRequest { claims: vec![claim.clone()] };
        let mut plugin = DraPluginClient::new(dial(self.socket.clone()).await);
        let answer = plugin.node_prepare_resources(request).await.map_err(|status| status.to_string())?;
        let answer = answer.into_inner().claims.remove(&claim.uid).unwrap();
        match answer.error.as_str() {
            "" => Ok(answer.devices.into_iter().flat_map(|device| device.cdi_device_ids).collect()),
            error => Err(error.to_owned()),
        }
    }

    pub async fn unprepare(&self, claim: &Claim) -> Result<(), String> {
        let request = NodeUnprepareResourcesRequest { claims: vec![claim.clone()] };
        let mut plugin = DraPluginClient::new(dial(self.socket.clone()).await);
        let answer = plugin.node_unprepare_resources(request).await.map_err(|status| status.to_string())?;
        match answer.into_inner().claims.remove(&claim.uid).unwrap().error.as_str() {
            "" => Ok(()),
            error => Err(error.to_owned()),
        }
    }
}
