use heddle_core::api::{ChannelSpec, ComputeDomainRef, ComputeDomainSpec, IsolationMode, TemplateRef};
use heddle_core::clique::CliqueId;
use heddle_core::controller::Cd;
use heddle_core::imex::{exclusive_domain_name, shared_domain_name};

/// The instance that is played, and what may go wrong in it.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Nodes, over the cliques in turn.
    pub nodes: usize,
    /// Cliques.
    pub cliques: usize,
    /// ComputeDomains that may live, each once.
    pub cds: Vec<Plan>,
    /// Channel numbers of a node, from 1.
    pub numbers: u32,
    /// Controllers that act, whatever they know.
    pub leaders: usize,
    /// Whether the kubelets' calls, the scheduler's claims, the deletion of ComputeDomains in two steps and what the
    /// controllers know of all that are part of the play. If not, anything of it goes: a claim may enter at any time,
    /// what no prepared claim rests on may be left at any time, and a controller may believe of claims and
    /// ComputeDomains whatever it likes, and turn to another belief, though it asks whether one is gone before it acts
    /// on that.
    pub detailed: bool,
    /// Whether several things that an agent wants may travel in one write.
    pub together: bool,
    /// Whether nodes get certificates before they move.
    pub certificates: bool,
    /// Writes of controllers, and allocations, that may be on their way at a time.
    pub sent: usize,
    /// How often things go wrong.
    pub faults: Faults,
    /// A fault in what surrounds the decisions, which must be found.
    pub bug: Option<Bug>,
}

/// One ComputeDomain.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Its isolation.
    pub mode: IsolationMode,
    /// It exists from the start; otherwise it may be created.
    pub there: bool,
    /// It has the name of this one, and may be created once that is gone.
    pub after: Option<usize>,
}

impl Plan {
    /// One with `isolationMode: Channel`, there from the start.
    pub const SHARED: Self = Self { mode: IsolationMode::Channel, there: true, after: None };
    /// One with `isolationMode: Domain`, there from the start.
    pub const EXCLUSIVE: Self = Self { mode: IsolationMode::Domain, there: true, after: None };
}

/// How often each fault may happen in one play.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Faults {
    /// An agent dies and starts again.
    pub crashes: u8,
    /// An agent gets no answer to its write, which may arrive yet.
    pub unanswered: u8,
    /// A node is lost for ever.
    pub lost: u8,
    /// What a lost node lists is released.
    pub releases: u8,
    /// A controller believes something else of the ComputeDomains that do not share.
    pub turns: u8,
    /// An IMEXDomain's status goes back to what it was when a backup was taken.
    pub restores: u8,
}

/// A fault in the model's surroundings. What decides stays as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// The controller is shown nodes that all seem to have observed every drain.
    FreeWithoutFence,
    /// The controller is shown channels of ComputeDomains that are gone as if they had been drained long ago.
    FreeWithoutDraining,
    /// The API server takes an agent's write whatever version it was decided on.
    EnterUnguarded,
    /// The controller is shown nodes that seem to list nothing when it moves them.
    MoveWhileListed,
    /// The agent believes that no earlier write of its own can arrive any more.
    TrustOldEntry,
    /// Nodes are moved while they list something, and the daemon is ended without asking whether claims are prepared.
    SwitchUnderClaims,
}

impl Settings {
    /// A quiet cluster of one clique: no faults.
    pub fn quiet(nodes: usize, cds: &[Plan], numbers: u32) -> Self {
        Self {
            nodes,
            cliques: 1,
            cds: cds.to_vec(),
            numbers,
            leaders: 1,
            detailed: false,
            together: false,
            certificates: false,
            sent: 1,
            faults: Faults::default(),
            bug: None,
        }
    }
}

/// The names of everything in an instance.
pub struct Names {
    /// Node names.
    pub nodes: Vec<String>,
    /// The clique of each node.
    pub clique_of: Vec<usize>,
    /// Cliques.
    pub cliques: Vec<CliqueId>,
    /// IMEX domains, those of the first clique first, and in it the shared one first.
    pub domains: Vec<String>,
    /// ComputeDomains as the API has them.
    pub cds: Vec<Cd>,
}

impl Names {
    /// Of this instance.
    pub fn of(settings: &Settings) -> Self {
        let cds: Vec<Cd> = (0..settings.cds.len()).map(|c| cd(c, &settings.cds)).collect();
        let clique = |n| format!("0b6fbb2e-7b1a-4a5c-9a53-6f3f5dfb2a11.{n}").parse().expect("it is one");
        let cliques: Vec<CliqueId> = (1..=settings.cliques).map(clique).collect();
        let domains = cliques.iter().flat_map(|clique| {
            let exclusive = cds.iter().filter(|cd| cd.exclusive()).map(|cd| exclusive_domain_name(clique, cd.uid()));
            std::iter::once(shared_domain_name(clique)).chain(exclusive).collect::<Vec<_>>()
        });
        Self {
            nodes: (0..settings.nodes).map(|n| format!("n{n}")).collect(),
            clique_of: (0..settings.nodes).map(|n| n % settings.cliques).collect(),
            domains: domains.collect(),
            cliques,
            cds,
        }
    }

    /// The address of a node.
    pub fn address(n: usize) -> String {
        format!("10.0.0.{}", n + 1)
    }

    /// The place of a domain among the domains.
    pub fn domain(&self, name: &str) -> Option<usize> {
        self.domains.iter().position(|domain| domain == name)
    }
}

fn cd(c: usize, plans: &[Plan]) -> Cd {
    let first = std::iter::successors(Some(c), |c| plans[*c].after).last().unwrap_or(c);
    let (plan, name) = (plans[c], format!("cd{first}"));
    let channel = ChannelSpec { resource_claim_template: TemplateRef { name: name.clone() }, ..Default::default() };
    Cd {
        reference: ComputeDomainRef { namespace: "team".into(), name, uid: format!("uid-{c}") },
        created: None,
        deleting: false,
        finalizers: Vec::new(),
        generation: None,
        resource_version: None,
        spec: Ok(ComputeDomainSpec { num_nodes: 0, isolation_mode: plan.mode, channel }),
        status: None,
        origin: Default::default(),
    }
}
