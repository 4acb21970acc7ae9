//! The identities by which the node's daemon meets its peers: gets them signed, keeps them, renews them in time.

mod ask;
mod files;
mod held;
mod identities;
mod store;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use heddle_core::api::ImexMode;
use heddle_core::condition::{Draft, draft};
use heddle_core::fault::{Fault, reason};
use heddle_core::identity::{Authentication, is_domain_name};
use heddle_core::imex::{Standing, is_exclusive};
use kube::Client;

use ask::Ask;
pub use files::{Message as FilesMessage, PeerFiles, Settings as FilesSettings};
use held::Held;
pub use identities::Identities;
use store::Store;

use crate::agent::Tell;
use crate::node_link::DomainView;
use crate::runtime::{self, Actor, Cx, Overflow, Task};

/// Type of the condition on the IMEXNode.
pub const CONDITION: &str = heddle_core::identity::PEER_IDENTITY;
/// Reason of the condition while a certificate is valid.
const VALID: &str = "CertificateValid";
/// Pauses before a request that has failed or was denied is made again.
const RETRY_MIN: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(300);
/// The clock may be set, so what is due later is looked at this often.
const LOOK: Duration = Duration::from_secs(60);

/// What a [`PeerIdentity`] is built from.
#[derive(Clone)]
pub struct Settings {
    /// The API.
    pub client: Client,
    /// Name of the Node.
    pub node_name: String,
    /// Where the agent keeps its files.
    pub state_dir: PathBuf,
    /// The life to ask for, in seconds.
    pub seconds: u32,
    /// Who uses the identities.
    pub identities: Tell<Identities>,
    /// Who reports how it is.
    pub condition: Tell<Draft>,
    /// Who reports until when the node can meet peers, RFC 3339, by IMEXDomain.
    pub certificates: Tell<BTreeMap<String, String>>,
}

/// What it is told.
#[derive(Debug)]
pub enum Message {
    /// From the node link.
    View(DomainView),
    /// From the mode keeper: the peers of a host's daemon are the host's business.
    Standing(Standing),
    /// A request is there and waits for its answer.
    Waiting {
        /// The IMEXDomain.
        domain: String,
        /// Name of the request.
        request: String,
    },
    /// A request has been answered.
    Answered {
        /// The IMEXDomain.
        domain: String,
        /// How.
        answer: Box<Answer>,
    },
    /// The pause after a failed request is over.
    Again(String),
    /// A certificate is to be renewed, or has expired.
    Due,
}

/// What became of a request.
pub struct Answer(Result<Held, Fault>);

impl std::fmt::Debug for Answer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Answer").field(&self.0.as_ref().map(|held| &held.chain)).finish()
    }
}

impl runtime::Message for Message {
    fn kind(&self) -> &'static str {
        match self {
            Self::View(_) => "View",
            Self::Standing(_) => "Standing",
            Self::Waiting { .. } => "Waiting",
            Self::Answered { .. } => "Answered",
            Self::Again(_) => "Again",
            Self::Due => "Due",
        }
    }

    fn overflow(&self) -> Overflow {
        match self {
            Self::View(_) | Self::Standing(_) | Self::Due => Overflow::Replace,
            _ => Overflow::Reject,
        }
    }
}

/// Owns the node's keys.
pub struct PeerIdentity {
    settings: Settings,
    store: Store,
    view: Option<DomainView>,
    mode: ImexMode,
    held: BTreeMap<String, Held>,
    /// The IMEXDomains that the node serves and is about to serve; the UID of the one that it serves.
    serves: Option<String>,
    next: Option<String>,
    uid: Option<String>,
    asking: BTreeMap<String, Task>,
    /// What is in the way, and how often in a row it was.
    troubles: BTreeMap<String, (String, u32)>,
    resting: BTreeSet<String>,
    timer: Option<Task>,
    said: Option<Identities>,
    said_certificates: Option<BTreeMap<String, String>>,
    said_condition: Option<Draft>,
}

impl PeerIdentity {
    /// With what was kept on the disk.
    ///
    /// # Errors
    /// Retryable: the folder cannot be read.
    pub fn new(settings: Settings) -> Result<Self, Fault> {
        let store = Store::new(&settings.state_dir);
        Ok(Self {
            held: store.load()?,
            store,
            settings,
            view: None,
            mode: ImexMode::default(),
            serves: None,
            next: None,
            uid: None,
            asking: BTreeMap::new(),
            troubles: BTreeMap::new(),
            resting: BTreeSet::new(),
            timer: None,
            said: None,
            said_certificates: None,
            said_condition: None,
        })
    }

    fn see(&mut self) {
        let Some(view) = self.view.as_ref().filter(|_| self.mode == ImexMode::DriverManaged) else {
            (self.serves, self.next, self.uid) = (None, None, None);
            return std::mem::take(&mut self.asking).into_values().for_each(|task| task.cancel());
        };
        let usable = |name: &Option<String>| name.clone().filter(|name| is_domain_name(name));
        (self.serves, self.next) = (usable(&view.node.spec.domain), usable(&view.node.spec.next));
        let object = view.domain.as_ref().filter(|domain| domain.metadata.name == self.serves);
        self.uid = object.and_then(|domain| domain.metadata.uid.clone());
        let gone: Vec<String> = self.asking.keys().filter(|domain| !self.wants(domain)).cloned().collect();
        for domain in gone {
            if let Some(task) = self.asking.remove(&domain) {
                task.cancel();
            }
        }
        let wanted = [&self.serves, &self.next].map(Clone::clone);
        self.troubles.retain(|domain, _| wanted.iter().flatten().any(|wanted| wanted == domain));
    }

    fn wants(&self, domain: &str) -> bool {
        [&self.serves, &self.next].into_iter().any(|wanted| wanted.as_deref() == Some(domain))
    }

    /// The UID is known of the domain that is served alone.
    fn uid_of(&self, domain: &str) -> Option<&str> {
        self.uid.as_deref().filter(|_| self.serves.as_deref() == Some(domain))
    }

    fn usable(&self, domain: &str, now: i64) -> Result<&Held, String> {
        let held = self.held.get(domain).ok_or("there is none yet")?;
        held.usable(domain, self.uid_of(domain), now).map(|()| held)
    }

    /// Asks for what is wanted and missing or due, and forgets what nobody will want.
    fn step(&mut self, now: i64, cx: &mut Cx<'_, Self>) {
        let wanted: BTreeSet<String> = [&self.serves, &self.next].into_iter().flatten().cloned().collect();
        for domain in wanted {
            let due = self.usable(&domain, now).map_or(true, |held| held.is_due(now));
            if due && !self.asking.contains_key(&domain) && !self.resting.contains(&domain) {
                self.ask(domain, cx);
            }
        }
        // Before the first view nobody knows what is wanted.
        if self.serves.is_some() {
            self.forget(now);
        }
    }

    /// The shared domain's is kept while the node is away from it; that of an exclusive domain ends with the stay.
    fn forget(&mut self, now: i64) {
        let over = |domain: &str, held: &Held| is_exclusive(domain) || now >= held.chain.not_after;
        let unwanted: Vec<String> = self
            .held
            .iter()
            .filter(|(domain, held)| !self.wants(domain) && over(domain, held))
            .map(|(domain, _)| domain.clone())
            .collect();
        for domain in unwanted {
            self.held.remove(&domain);
            if let Err(fault) = self.store.remove(&domain) {
                tracing::warn!(domain, reason = fault.reason, "{fault}");
            }
        }
    }

    fn ask(&mut self, domain: String, cx: &mut Cx<'_, Self>) {
        let ask = Ask {
            client: self.settings.client.clone(),
            node: self.settings.node_name.clone(),
            domain: domain.clone(),
            key_pem: self.held.get(&domain).map(|held| held.key_pem.clone()),
            seconds: self.settings.seconds,
        };
        tracing::info!(domain, "asking for a peer certificate");
        let (address, of) = (cx.address(), domain.clone());
        let waiting = move |request| address.tell(Message::Waiting { domain: of, request });
        let of = domain.clone();
        let task = cx.spawn_then("ask", ask.run(waiting), move |answer| Message::Answered {
            domain: of,
            answer: Box::new(Answer(answer)),
        });
        self.asking.insert(domain, task);
    }

    fn answered(&mut self, domain: String, answer: Result<Held, Fault>, now: i64, cx: &mut Cx<'_, Self>) {
        self.asking.remove(&domain);
        let uid = self.uid_of(&domain).map(str::to_owned);
        let checked = answer.and_then(|held| {
            let usable = held.usable(&domain, uid.as_deref(), now);
            usable.map(|()| held).map_err(|why| Fault::retryable(reason::NO_PEER_IDENTITY, why))
        });
        match checked {
            Ok(held) => {
                tracing::info!(domain, until = %rfc3339(held.chain.not_after), "a peer certificate is there");
                // Without it the next agent asks anew, that is all.
                if let Err(fault) = self.store.write(&domain, &held) {
                    tracing::warn!(domain, reason = fault.reason, "the peer certificate could not be kept: {fault}");
                }
                self.troubles.remove(&domain);
                self.held.insert(domain, held);
            }
            Err(fault) => {
                tracing::warn!(domain, reason = fault.reason, "no peer certificate: {fault}");
                let (text, failures) = self.troubles.entry(domain.clone()).or_default();
                *text = fault.message;
                let pause = RETRY_MIN.saturating_mul(1 << (*failures).min(10)).min(RETRY_MAX);
                *failures += 1;
                self.resting.insert(domain.clone());
                cx.after(pause.mul_f64(0.5 + fastrand::f64() / 2.0), Message::Again(domain));
            }
        }
    }

    /// Looks again when the next certificate is due.
    fn set_timer(&mut self, now: i64, cx: &mut Cx<'_, Self>) {
        let next = self.held.values().map(|held| held.due(now)).filter(|due| *due > now).min();
        if let Some(timer) = self.timer.take() {
            timer.cancel();
        }
        if let Some(due) = next {
            let pause = u64::try_from(due - now).map_or(LOOK, Duration::from_secs).min(LOOK);
            self.timer = Some(cx.after(pause, Message::Due));
        }
    }

    /// Says what differs from what was said.
    fn report(&mut self, now: i64) {
        let usable: BTreeMap<&String, &Held> =
            self.held.keys().filter_map(|domain| Some((domain, self.usable(domain, now).ok()?))).collect();
        let missing = |domain: &String| {
            let why = self.troubles.get(domain).map(|(why, _)| why.clone());
            let kept = self.held.get(domain).and_then(|_| self.usable(domain, now).err());
            let text = [kept, why].into_iter().flatten().collect::<Vec<_>>().join("; ");
            let text = if text.is_empty() { "it is being asked for".to_owned() } else { text };
            (domain.clone(), format!("no peer certificate for IMEX domain {domain}: {text}"))
        };
        let lacks = [&self.serves, &self.next].into_iter().flatten().filter(|domain| !usable.contains_key(domain));
        let identities = Identities {
            of_domains: usable.iter().map(|(domain, held)| ((*domain).clone(), held.identity(domain))).collect(),
            missing: lacks.map(missing).collect(),
            ..Identities::default()
        };
        let certificates: BTreeMap<String, String> =
            usable.iter().map(|(domain, held)| ((*domain).clone(), rfc3339(held.chain.not_after))).collect();
        let condition = self.serves.as_ref().map(|domain| match usable.get(domain) {
            Some(held) => {
                let until = rfc3339(held.chain.not_after);
                let trouble = self.troubles.get(domain).filter(|(_, failures)| *failures > 0 || held.is_late(now));
                let renewal = trouble.map_or(String::new(), |(why, _)| format!("; not renewed: {why}"));
                draft(CONDITION, "True", VALID, format!("IMEX domain {domain}: until {until}{renewal}"))
            }
            None => {
                let why = identities.missing.get(domain).cloned().unwrap_or_default();
                draft(CONDITION, "False", reason::NO_PEER_IDENTITY, why)
            }
        });
        if self.said.as_ref() != Some(&identities) {
            (self.settings.identities)(identities.clone());
            self.said = Some(identities);
        }
        if self.serves.is_some() && self.said_certificates.as_ref() != Some(&certificates) {
            (self.settings.certificates)(certificates.clone());
            self.said_certificates = Some(certificates);
        }
        if let Some(condition) = condition.filter(|condition| self.said_condition.as_ref() != Some(condition)) {
            (self.settings.condition)(condition.clone());
            self.said_condition = Some(condition);
        }
    }
}

/// How it is where Heddle gives the daemons no certificates.
pub fn unauthenticated(authentication: Authentication) -> Draft {
    match authentication {
        Authentication::Insecure => draft(
            CONDITION,
            "False",
            "NotAuthenticated",
            "IMEX daemons take any peer: --peer-authentication is insecure; keep their port closed to all but the nodes",
        ),
        other => draft(CONDITION, "Unknown", "NotOurs", format!("peers are authenticated by {other}, not by Heddle")),
    }
}

fn rfc3339(seconds: i64) -> String {
    jiff::Timestamp::from_second(seconds).map(|at| at.to_string()).unwrap_or_default()
}

impl Actor for PeerIdentity {
    const KIND: &'static str = "PeerIdentity";
    type Message = Message;

    fn started(&mut self, _: &mut Cx<'_, Self>) -> Result<(), Fault> {
        // What was kept is used before the API has been reached.
        self.report(jiff::Timestamp::now().as_second());
        Ok(())
    }

    fn handle(&mut self, message: Message, cx: &mut Cx<'_, Self>) -> Result<(), Fault> {
        let now = jiff::Timestamp::now().as_second();
        match message {
            Message::View(view) => {
                self.view = Some(view);
                self.see();
            }
            Message::Standing(standing) => {
                self.mode = standing.acts;
                self.see();
            }
            Message::Waiting { domain, request } => {
                if self.wants(&domain) {
                    let text = format!("request {request} waits for the controller to sign it");
                    self.troubles.entry(domain).or_default().0 = text;
                }
            }
            Message::Answered { domain, answer } => self.answered(domain, answer.0, now, cx),
            Message::Again(domain) => drop(self.resting.remove(&domain)),
            Message::Due => {}
        }
        self.step(now, cx);
        self.set_timer(now, cx);
        self.report(now);
        Ok(())
    }
}
