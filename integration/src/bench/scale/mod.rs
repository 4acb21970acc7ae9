//! The controller of a large cluster: what it costs, and whether that grows with the cluster.
//!
//! The controller is a real process. Nodes are light: they decide and write as agents do, in this process, one after
//! the other; there are no daemons, kubelets or schedulers.

mod fleet;
mod load;
mod tally;

use std::collections::VecDeque;
use std::ffi::OsString;
use std::net::{SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use heddle_core::clique::CliqueId;
use kube::Client;
use rustix::process::Pid;
use tempfile::TempDir;
use uuid::Uuid;

use super::embedded::{Embedded, NAMESPACE};
use super::figures::{Figures, millis};
use super::{Shared, bed, process, scrape};
use crate::api::Options;
use crate::demo::cluster::{folder, words};
use crate::demo::process::{Process, Start};
use fleet::{BREATH, Fleet};
use load::{Job, Progress, Times};
use tally::Counts;

/// Nodes of an NVL72 rack.
const CLIQUE: u32 = 18;
/// Namespaces that ComputeDomains are spread over.
const TEAMS: u32 = 20;
/// Nodes of each ComputeDomain.
const SPAN: u32 = 2;
/// How long claims are held in the churn.
const HOLD: Duration = Duration::from_secs(1);
/// Changes that the API server remembers. All nodes change several times at once.
const HISTORY: usize = 1 << 16;
/// No CPU time in this time is quiet.
const QUIET: Duration = Duration::from_millis(600);
/// What a phase may take before it counts as broken.
const PATIENCE: Duration = Duration::from_secs(900);
/// How long the controller is watched at rest.
const REST: Duration = Duration::from_secs(10);
/// Looks for a rest without a write.
const RESTS: u32 = 3;
const MIB: f64 = 1024.0 * 1024.0;

/// How much is done.
#[derive(Clone, Debug)]
pub struct Amounts {
    /// Nodes.
    pub nodes: u32,
    /// NVLink partitions that they are spread over.
    pub cliques: u32,
    /// ComputeDomains that stay.
    pub compute_domains: u32,
    /// How long ComputeDomains come and go, in seconds.
    pub churn_seconds: u32,
    /// How many come in each second of that.
    pub churn_rate: u32,
    /// Nodes that reboot, one after the other.
    pub reboots: u32,
    /// Smaller clusters that are measured before, by their nodes.
    pub before: Vec<u32>,
}

/// Measures smaller clusters and then the one asked for.
///
/// # Errors
/// When something that is measured fails.
pub async fn measure(shared: &Shared, amounts: Amounts, figures: &mut Figures) -> anyhow::Result<()> {
    for nodes in amounts.before.iter().copied().filter(|nodes| *nodes < amounts.nodes) {
        let part = |of: u32| (u64::from(of) * u64::from(nodes)).div_ceil(u64::from(amounts.nodes).max(1)) as u32;
        let smaller = Amounts {
            nodes,
            cliques: part(amounts.cliques),
            compute_domains: part(amounts.compute_domains),
            churn_seconds: amounts.churn_seconds.min(15),
            reboots: amounts.reboots.min(nodes),
            ..amounts.clone()
        };
        Cluster::run(shared, &smaller, figures).await.with_context(|| format!("with {nodes} nodes"))?;
    }
    Cluster::run(shared, &amounts, figures).await
}

/// The cluster, and the controller's process.
struct Cluster<'a> {
    shared: &'a Shared,
    amounts: &'a Amounts,
    api: Embedded,
    client: Client,
    fleet: Fleet,
    names: Vec<String>,
    folder: TempDir,
    controller: Option<(Process, SocketAddr)>,
    made: u32,
}

impl Cluster<'_> {
    async fn run(shared: &Shared, amounts: &Amounts, figures: &mut Figures) -> anyhow::Result<()> {
        if amounts.nodes > amounts.cliques * CLIQUE || amounts.cliques == 0 || amounts.nodes < SPAN {
            bail!("--nodes {} does not fit --cliques {}: a clique has up to {CLIQUE}", amounts.nodes, amounts.cliques);
        }
        let api = Embedded::start(Options { history: HISTORY, ..Options::default() })?;
        let folder = folder()?;
        api.kubeconfig(&folder.path().join("kubeconfig"))?;
        let fleet = Fleet::new(&api.server);
        let client = fleet.client();
        let (names, made) = (Vec::new(), 0);
        let mut cluster = Cluster { shared, amounts, api, client, fleet, names, folder, controller: None, made };
        let played = cluster.play(figures).await;
        cluster.stop_controller().await;
        played
    }

    async fn play(&mut self, figures: &mut Figures) -> anyhow::Result<()> {
        let Amounts { nodes, cliques, compute_domains, .. } = *self.amounts;
        figures.section(format!("{nodes} nodes, {cliques} cliques, {compute_domains} ComputeDomains"));
        self.provision().await?;
        self.first_start(figures).await?;
        self.fill(figures).await?;
        self.cold_start(figures).await?;
        self.churn(figures).await?;
        self.reboot(figures).await?;
        self.rest(figures).await
    }

    async fn provision(&mut self) -> anyhow::Result<()> {
        bed::install_crds(&self.client).await?;
        bed::create_namespace(&self.client, NAMESPACE).await?;
        for team in 0..TEAMS {
            bed::create_namespace(&self.client, &format!("team-{team}")).await?;
        }
        let cluster = Uuid::from_u128(fastrand::u128(..));
        for number in 0..self.amounts.nodes {
            let name = format!("node-{number:05}");
            // Neighbours are of one clique.
            let id = (u64::from(number) * u64::from(self.amounts.cliques) / u64::from(self.amounts.nodes)) as u32;
            let address = format!("10.{}.{}.{}", number >> 16, number >> 8 & 255, number & 255);
            bed::create_node(&self.client, &name).await?;
            self.fleet.add(&name, &CliqueId { cluster, id: id + 1 }.to_string(), address).await?;
            self.names.push(name);
        }
        Ok(())
    }

    fn start_controller(&mut self) -> anyhow::Result<Pid> {
        let (_, roles) = self.shared.binaries()?;
        let metrics = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let command: Vec<OsString> = words(["controller", "--metrics-address", &metrics.to_string(), "--kubeconfig"])
            .chain([self.folder.path().join("kubeconfig").into()])
            .collect();
        let process = Process::start(Start {
            name: "controller".into(),
            command: roles.command(command),
            environment: bed::peers(self.shared.insecure_peers),
            log: self.folder.path().join("controller.log"),
        })?;
        let pid = process.pid().context("the controller has ended")?;
        self.controller = Some((process, metrics));
        Ok(pid)
    }

    async fn stop_controller(&mut self) {
        if let Some((process, _)) = self.controller.take() {
            process.stop().await;
        }
    }

    fn pid(&self) -> anyhow::Result<Pid> {
        let (process, _) = self.controller.as_ref().context("the controller does not run")?;
        if let Some(broken) = process.broken() {
            bail!("{broken}");
        }
        process.pid().context("the controller has ended")
    }

    async fn is_ready(&self) -> bool {
        match &self.controller {
            Some((_, metrics)) => scrape::is_ready(*metrics).await,
            None => false,
        }
    }

    /// A controller comes to nodes that have only just reported.
    async fn first_start(&mut self, figures: &mut Figures) -> anyhow::Result<()> {
        let (began, before) = (Instant::now(), self.fleet.tally.now());
        self.start_controller()?;
        while self.fleet.unserved() > 0 {
            self.breathe().await?;
            if began.elapsed() > PATIENCE {
                bail!("{} nodes serve no domain after {} s", self.fleet.unserved(), PATIENCE.as_secs());
            }
        }
        let served = began.elapsed();
        let quiet = self.until_quiet(began).await?;
        let counts = self.fleet.tally.now().since(&before);
        figures.plain("new cluster: controller started to all nodes in their domain", millis(served) / 1000.0, "s");
        figures.plain("new cluster: controller started to quiet", millis(quiet) / 1000.0, "s");
        let nodes = f64::from(self.amounts.nodes);
        figures.plain("new cluster: controller's writes for each node", counts.of_controller() as f64 / nodes, "");
        self.resources("new cluster", began, figures)
    }

    /// All ComputeDomains come at once, each with a claim on two nodes.
    async fn fill(&mut self, figures: &mut Figures) -> anyhow::Result<()> {
        let (began, before) = (Instant::now(), self.fleet.tally.now());
        let (mut jobs, mut times) = (VecDeque::new(), Times::default());
        for _ in 0..self.amounts.compute_domains {
            jobs.push_back(self.create(None).await?);
        }
        self.finish(&mut jobs, &mut times, began).await?;
        let took = began.elapsed();
        self.until_quiet(began).await?;
        let counts = self.fleet.tally.now().since(&before);
        let what = format!("{} ComputeDomains at once", self.amounts.compute_domains);
        figures.plain(format!("{what}: all claims prepared"), millis(took) / 1000.0, "s");
        self.writes(&what, &counts, self.amounts.compute_domains, figures);
        Ok(())
    }

    /// A controller that knows nothing comes to a settled cluster.
    async fn cold_start(&mut self, figures: &mut Figures) -> anyhow::Result<()> {
        self.stop_controller().await;
        self.drained().await?;
        let (began, before, used) = (Instant::now(), self.fleet.tally.now(), self.api.cpu()?);
        let pid = self.start_controller()?;
        while !self.is_ready().await {
            self.breathe().await?;
            if began.elapsed() > PATIENCE {
                bail!("the controller is not ready after {} s", PATIENCE.as_secs());
            }
        }
        figures.plain("cold start: controller started to ready", millis(began.elapsed()) / 1000.0, "s");
        let quiet = self.until_quiet(began).await?;
        figures.at_most("cold start: controller started to quiet", millis(quiet) / 1000.0, "s", 15.0);
        figures.plain("cold start: CPU of the controller", millis(process::cpu(pid)?) / 1000.0, "s");
        let api = self.api.cpu()?.saturating_sub(used);
        figures.plain("cold start: CPU of the API server", millis(api) / 1000.0, "s");
        let counts = self.fleet.tally.now().since(&before);
        figures.at_most("cold start: controller's writes", counts.of_controller() as f64, "", 0.0);
        for (resource, count) in &counts.controller {
            figures.plain(format!("cold start: write requests to {resource}"), *count as f64, "");
        }
        let resident = process::memory(pid)?.resident as f64 / MIB;
        figures.at_most("cold start: memory of the controller", resident, "MiB", 300.0);
        Ok(())
    }

    /// ComputeDomains come and go, the same number in each second.
    async fn churn(&mut self, figures: &mut Figures) -> anyhow::Result<()> {
        let total = self.amounts.churn_seconds * self.amounts.churn_rate;
        if total == 0 {
            return Ok(());
        }
        let pause = Duration::from_secs(1) / self.amounts.churn_rate;
        let (began, before) = (Instant::now(), self.fleet.tally.now());
        let (pid, own) = (self.pid()?, self.api.cpu()?);
        let used = process::cpu(pid)?;
        let (mut jobs, mut times, mut started) = (VecDeque::new(), Times::default(), 0);
        while started < total {
            while started < total && began.elapsed() >= pause * started {
                jobs.push_back(self.create(Some(HOLD)).await?);
                started += 1;
            }
            self.advance(&mut jobs, &mut times).await?;
            self.breathe().await?;
        }
        let took = began.elapsed();
        self.finish(&mut jobs, &mut times, began).await?;
        let (cpu, api) = (process::cpu(pid)?.saturating_sub(used), self.api.cpu()?.saturating_sub(own));
        let counts = self.fleet.tally.now().since(&before);
        let rate = f64::from(total) / took.as_secs_f64();
        figures.plain("churn: ComputeDomains in a second", rate, "/s");
        for (what, times) in times.distributions() {
            figures.distribution(&format!("churn: {what}"), &times, [None; 3]);
        }
        let each = f64::from(total);
        figures.plain("churn: controller CPU for each ComputeDomain", millis(cpu) / each, "ms");
        figures.plain("churn: API server CPU for each, for the controller alone", millis(api) / each, "ms");
        self.writes("churn", &counts, total, figures);
        figures.at_most("churn: memory of the controller", process::memory(pid)?.resident as f64 / MIB, "MiB", 300.0);
        Ok(())
    }

    /// Nodes reboot, ten at a time.
    async fn reboot(&mut self, figures: &mut Figures) -> anyhow::Result<()> {
        let nodes: Vec<_> = self.names.iter().take(self.amounts.reboots as usize).cloned().collect();
        if nodes.is_empty() {
            return Ok(());
        }
        let (began, before) = (Instant::now(), self.fleet.tally.now());
        let used = process::cpu(self.pid()?)?;
        for batch in nodes.chunks(10) {
            for down in [true, false] {
                batch.iter().for_each(|node| self.fleet.power(node, down));
                let until = Instant::now() + Duration::from_millis(100);
                while Instant::now() < until {
                    self.breathe().await?;
                }
            }
        }
        self.until_quiet(began).await?;
        let counts = self.fleet.tally.now().since(&before);
        let (each, cpu) = (nodes.len() as f64, process::cpu(self.pid()?)?.saturating_sub(used));
        figures.plain("rolling reboot: controller's writes for each node", counts.of_controller() as f64 / each, "");
        let written = counts.agents.values().sum::<u64>() as f64;
        figures.plain("rolling reboot: agents' writes for each node", written / each, "");
        figures.plain("rolling reboot: controller CPU for each node", millis(cpu) / each, "ms");
        Ok(())
    }

    /// Where other programs take the CPU, what the start has left comes late; what is repeated within a look is there at the last one too.
    async fn rest(&mut self, figures: &mut Figures) -> anyhow::Result<()> {
        let (mut counts, mut cpu) = self.one_rest().await?;
        for _ in 1..RESTS {
            if counts.all_committed() == 0 {
                break;
            }
            (counts, cpu) = self.one_rest().await?;
        }
        figures.at_most(format!("rest: writes in {} s", REST.as_secs()), counts.all_committed() as f64, "", 0.0);
        for (kind, count) in &counts.committed {
            figures.plain(format!("rest: writes of {kind}"), *count as f64, "");
        }
        figures.plain("rest: controller CPU", millis(cpu) / REST.as_secs_f64(), "ms/s");
        Ok(())
    }

    /// What is written while nothing happens, and the controller's CPU time.
    async fn one_rest(&mut self) -> anyhow::Result<(Counts, Duration)> {
        let (began, before, used) = (Instant::now(), self.fleet.tally.now(), process::cpu(self.pid()?)?);
        while began.elapsed() < REST {
            self.breathe().await?;
        }
        let cpu = process::cpu(self.pid()?)?.saturating_sub(used);
        Ok((self.fleet.tally.now().since(&before), cpu))
    }

    /// A ComputeDomain on two neighbours somewhere in the cluster.
    async fn create(&mut self, hold: Option<Duration>) -> anyhow::Result<Job> {
        let number = self.made;
        self.made += 1;
        let first = (number * SPAN) as usize % self.names.len();
        let nodes = (0..SPAN as usize).map(|offset| self.names[(first + offset) % self.names.len()].clone()).collect();
        let (team, name) = (format!("team-{}", number % TEAMS), format!("cd-{number}"));
        Job::start(&self.client, &team, &name, nodes, hold).await
    }

    async fn advance(&mut self, jobs: &mut VecDeque<Job>, times: &mut Times) -> anyhow::Result<()> {
        for _ in 0..jobs.len() {
            let Some(mut job) = jobs.pop_front() else { break };
            if job.advance(&mut self.fleet, times).await? == Progress::Waits {
                jobs.push_back(job);
            }
        }
        Ok(())
    }

    /// Goes on until every job has come to its end.
    async fn finish(&mut self, jobs: &mut VecDeque<Job>, times: &mut Times, began: Instant) -> anyhow::Result<()> {
        while !jobs.is_empty() {
            self.advance(jobs, times).await?;
            self.breathe().await?;
            if began.elapsed() > PATIENCE {
                bail!("{} ComputeDomains have not come to their end after {} s", jobs.len(), PATIENCE.as_secs());
            }
        }
        Ok(())
    }

    /// Lets the agents act, and waits for a moment if they have nothing to do.
    async fn breathe(&mut self) -> anyhow::Result<()> {
        self.fleet.turn().await?;
        if self.fleet.is_idle() {
            tokio::time::sleep(BREATH).await;
        }
        Ok(())
    }

    /// Nothing is written for a while, without a controller.
    async fn drained(&mut self) -> anyhow::Result<()> {
        let (mut version, mut since) = (self.api.server.resource_version(), Instant::now());
        while since.elapsed() < QUIET {
            self.breathe().await?;
            if self.api.server.resource_version() != version {
                (version, since) = (self.api.server.resource_version(), Instant::now());
            }
        }
        Ok(())
    }

    /// Waits until the controller uses no CPU time to speak of and nothing is written. The answer is when that began.
    async fn until_quiet(&mut self, began: Instant) -> anyhow::Result<Duration> {
        let look = async |cluster: &Self| anyhow::Ok((process::cpu(cluster.pid()?)?, cluster.fleet.tally.now()));
        let (mut used, mut counts) = look(self).await?;
        let mut since = Instant::now();
        loop {
            self.breathe().await?;
            if since.elapsed() < QUIET {
                continue;
            }
            let (now, written) = look(self).await?;
            // What a process needs to look at its timers.
            let rests = now.saturating_sub(used) <= Duration::from_millis(20);
            if rests && written.all_committed() == counts.all_committed() {
                return Ok(since.duration_since(began));
            }
            (used, counts, since) = (now, written, Instant::now());
            if began.elapsed() > PATIENCE {
                bail!("the controller has not come to rest within {} s", PATIENCE.as_secs());
            }
        }
    }

    fn writes(&self, what: &str, counts: &Counts, compute_domains: u32, figures: &mut Figures) {
        let each = f64::from(compute_domains);
        let on_nodes = each * f64::from(SPAN);
        figures.plain(format!("{what}: controller's writes for each"), counts.of_controller() as f64 / each, "");
        for (resource, count) in &counts.controller {
            if *count as f64 >= each / 2.0 {
                figures.plain(format!("{what}: of these to {resource}"), *count as f64 / each, "");
            }
        }
        let of = |resource: &str| counts.agents.get(resource).copied().unwrap_or_default() as f64;
        figures.plain(
            format!("{what}: writes of IMEXNodes by agents for each and node"),
            of("imexnodes/status") / on_nodes,
            "",
        );
        figures.plain(format!("{what}: writes of IMEXDomains by agents for each"), of("imexdomains/status") / each, "");
        figures.plain(
            format!("{what}: writes of agents that were refused, for each"),
            counts.conflicts as f64 / each,
            "",
        );
        figures.plain(
            format!("{what}: watched by the controller for each"),
            counts.controller_bytes as f64 / each / 1024.0,
            "KiB",
        );
        figures.plain(
            format!("{what}: watched by all agents for each"),
            counts.agent_bytes as f64 / each / 1024.0,
            "KiB",
        );
    }

    fn resources(&self, what: &str, began: Instant, figures: &mut Figures) -> anyhow::Result<()> {
        let pid = self.pid()?;
        figures.plain(format!("{what}: memory of the controller"), process::memory(pid)?.resident as f64 / MIB, "MiB");
        figures.plain(format!("{what}: CPU of the controller"), millis(process::cpu(pid)?) / 1000.0, "s");
        figures.plain(format!("{what}: CPU of the API server"), millis(self.api.cpu()?) / 1000.0, "s");
        figures.plain(format!("{what}: time in all"), millis(began.elapsed()) / 1000.0, "s");
        Ok(())
    }
}
