//! The Election keeps the Lease: it takes it, renews it, and says until when this process leads.

use std::cell::RefCell;
use std::convert::Infallible;
use std::future::Future;
use std::rc::Rc;
use std::time::Duration;

use heddle_core::fault::Fault;
use heddle_core::lease::{self, Observed, Record, Step, Terms};
use heddle_core::names;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client, ResourceExt};

use super::leadership::Leadership;
use super::metrics::LeaseMetrics;
use super::{clock, object};
use crate::cause;
use crate::runtime::{self, Actor, Cx, progress};

/// One request for the Lease. Several fit into a lease, and one that is held up does not use them all.
const REQUEST: Duration = Duration::from_secs(2);
/// What giving it back may take, at the end of the process.
const RELEASE: Duration = Duration::from_secs(2);

/// What an [`Election`] is built from.
#[derive(Clone)]
pub struct Settings {
    /// The API, without a guard: who does not lead must be able to begin.
    pub client: Client,
    /// Namespace of the Lease.
    pub namespace: String,
    /// Name of the Lease.
    pub name: String,
    /// This process, other than every other one and than itself before a restart.
    pub identity: String,
    /// How the lease is held.
    pub terms: Terms,
    /// Where it says until when this process leads.
    pub leadership: Leadership,
    /// Shows whether it does.
    pub metrics: LeaseMetrics,
}

/// What it is told: nothing.
#[derive(Debug)]
pub enum Message {}

impl runtime::Message for Message {
    fn kind(&self) -> &'static str {
        match *self {}
    }
}

/// Owns the candidacy of this process.
#[derive(Clone)]
pub struct Election {
    settings: Rc<Settings>,
    known: Rc<RefCell<Known>>,
}

/// What is known of the Lease.
#[derive(Default)]
struct Known {
    lease: Option<Lease>,
    observed: Option<Observed>,
    /// When the last write that was accepted began.
    renewed: Option<Duration>,
    /// The API has failed, and it has been said.
    failing: bool,
    /// Whom it waits for, and that has been said.
    awaited: Option<String>,
}

impl Actor for Election {
    const KIND: &'static str = "Election";
    type Message = Message;

    fn started(&mut self, cx: &mut Cx<'_, Self>) -> Result<(), Fault> {
        let campaign = self.clone();
        cx.spawn("campaign", async move {
            campaign.settings.leadership.known().await;
            match campaign.stand().await {}
        });
        let (mut changes, metrics) = (self.settings.leadership.changes(), self.settings.metrics.clone());
        cx.spawn("leadership", async move {
            loop {
                let leads = *changes.borrow_and_update();
                metrics.leader.set(i64::from(leads));
                if changes.changed().await.is_err() {
                    return Ok(());
                }
            }
        });
        Ok(())
    }

    fn handle(&mut self, message: Message, _: &mut Cx<'_, Self>) -> Result<(), Fault> {
        match message {}
    }
}

impl Election {
    /// A candidate that knows nothing yet.
    pub fn new(settings: Settings) -> Self {
        Self { settings: Rc::new(settings), known: Rc::default() }
    }

    async fn stand(&self) -> Infallible {
        self.look().await;
        loop {
            progress();
            let now = clock::now();
            self.notice();
            let step = {
                let known = self.known.borrow();
                let Settings { identity, terms, .. } = &*self.settings;
                lease::decide(now, known.observed.as_ref(), identity, known.renewed, terms)
            };
            match step {
                Step::Hold(until) => self.pause(until.saturating_sub(now)).await,
                Step::Wait(until) => {
                    self.pause(until.saturating_sub(now)).await;
                    self.look().await;
                }
                Step::Renew | Step::Take => match self.write().await {
                    Wrote::Held => {}
                    // Somebody was faster, or it was changed by hand.
                    Wrote::Refused => {
                        self.look().await;
                        self.pause(self.settings.terms.retry / 4).await;
                    }
                    Wrote::Failed => self.pause(self.settings.terms.retry).await,
                },
            }
        }
    }

    /// Pauses, but not past the end of the own lease.
    async fn pause(&self, pause: Duration) {
        let left = self.settings.leadership.left().unwrap_or(pause);
        tokio::time::sleep(pause.min(left).max(Duration::from_millis(1))).await;
    }

    /// Says that the lease is over, when it is.
    fn notice(&self) {
        let leadership = &self.settings.leadership;
        if *leadership.changes().borrow() && !leadership.leads() {
            self.resign("its lease has run out without a renewal");
        }
    }

    fn resign(&self, why: &str) {
        if *self.settings.leadership.changes().borrow() {
            tracing::warn!(identity = self.settings.identity, "this controller does not lead any more: {why}");
        }
        self.settings.leadership.resign();
    }

    fn api(&self) -> Api<Lease> {
        Api::namespaced(self.settings.client.clone(), &self.settings.namespace)
    }

    /// Reads the Lease. A look that fails leaves what was known.
    async fn look(&self) {
        let (api, name) = (self.api(), &self.settings.name);
        let found = self.asked(api.get_opt(name)).await;
        let Some(Ok(found)) = found else { return };
        let mut known = self.known.borrow_mut();
        let before = known.observed.take();
        known.observed = found.as_ref().map(|lease| Observed::next(before, object::read(lease), clock::now()));
        known.lease = found;
        let other = known.observed.as_ref().map(|observed| observed.record.holder.clone());
        let other = other.filter(|holder| *holder != self.settings.identity);
        drop(known);
        match other {
            Some(holder) if self.settings.leadership.leads() => {
                let holder = if holder.is_empty() { "nobody" } else { &holder };
                self.resign(&format!("its Lease says that {holder} holds it"));
            }
            _ => {}
        }
        self.tell_whom_it_waits_for();
    }

    /// Says it once for each holder, and as a warning where a holder that has died would be waited for longer than this
    /// controller's own terms say.
    fn tell_whom_it_waits_for(&self) {
        let Settings { identity, terms, name, namespace, .. } = &*self.settings;
        let mut known = self.known.borrow_mut();
        let record = known.observed.as_ref().map(|observed| observed.record.clone()).unwrap_or_default();
        let holder = Some(record.holder.clone()).filter(|holder| !holder.is_empty() && holder != identity);
        if known.awaited == holder {
            return;
        }
        if let Some(holder) = &holder {
            let longest = record.patience().as_secs();
            let what = format!(
                "this controller stands by: Lease {namespace}/{name} is held by {holder}, who is waited for until {longest} s \
                 after its last renewal"
            );
            if record.patience() > terms.duration {
                tracing::warn!(identity, "{what}; if nobody of that name runs, delete the Lease");
            } else {
                tracing::info!(identity, "{what}");
            }
        }
        known.awaited = holder;
    }

    async fn write(&self) -> Wrote {
        let Settings { identity, terms, name, namespace, .. } = &*self.settings;
        // Before it is sent: from here on the lease counts.
        let began = clock::now();
        let (lease, record, is_new) = {
            let known = self.known.borrow();
            let before = known.observed.as_ref().map(|observed| &observed.record);
            let record = lease::held(before, identity, &now(), terms);
            let mut lease = known.lease.clone().unwrap_or_else(|| self.blank());
            object::write(&mut lease, &record);
            (lease, record, known.lease.is_none())
        };
        let api = self.api();
        let written = if is_new {
            self.asked(api.create(&post(), &lease)).await
        } else {
            self.asked(api.replace(name, &post(), &lease)).await
        };
        match written {
            Some(Ok(lease)) => {
                self.took(lease, &record, began);
                Wrote::Held
            }
            Some(Err(kube::Error::Api(status))) if status.code == 409 || (status.code == 404 && !is_new) => {
                Wrote::Refused
            }
            Some(Err(kube::Error::Api(status))) if status.code == 404 => {
                tracing::warn!("no Lease can be made: is there a namespace {namespace}? set --namespace");
                Wrote::Failed
            }
            _ => Wrote::Failed,
        }
    }

    fn took(&self, lease: Lease, record: &Record, began: Duration) {
        let mut known = self.known.borrow_mut();
        let previous = known.observed.as_ref().map(|observed| observed.record.holder.clone()).unwrap_or_default();
        // What the server has made of it, so that the next look finds no change in its spelling.
        known.observed = Some(Observed { record: object::read(&lease), since: clock::now() });
        known.lease = Some(lease);
        known.renewed = Some(began);
        drop(known);
        let until = lease::until(began, &self.settings.terms);
        if !self.settings.leadership.leads() && clock::now() < until {
            tracing::info!(identity = record.holder, previous, "this controller leads");
        }
        self.settings.leadership.lead(until);
    }

    fn blank(&self) -> Lease {
        let metadata = ObjectMeta {
            name: Some(self.settings.name.clone()),
            namespace: Some(self.settings.namespace.clone()),
            ..ObjectMeta::default()
        };
        Lease { metadata, spec: None }
    }

    /// Gives the lease back, at the end of the process, when nothing of it writes any more: the next one leads at once.
    pub async fn release(&self) {
        let settings = &self.settings;
        self.settings.leadership.resign();
        let release = async {
            // A renewal that was on its way may have changed it since.
            for _ in 0..3 {
                self.look().await;
                let Some(mut lease) = self.known.borrow().lease.clone() else { return };
                let record = object::read(&lease);
                if record.holder != settings.identity {
                    return;
                }
                object::write(&mut lease, &lease::released(&record, &now()));
                if let Some(Ok(_)) = self.asked(self.api().replace(&lease.name_any(), &post(), &lease)).await {
                    tracing::info!(identity = settings.identity, "the lease is given back");
                    return;
                }
            }
        };
        if tokio::time::timeout(RELEASE, release).await.is_err() {
            tracing::warn!("the lease could not be given back; the next controller waits until it runs out");
        }
    }

    /// A request's answer; none if there was none in time. What fails is said once until it works again.
    async fn asked<T>(&self, request: impl Future<Output = kube::Result<T>>) -> Option<kube::Result<T>> {
        let answer = tokio::time::timeout(REQUEST, request).await.ok();
        let why = match &answer {
            Some(Ok(_)) => None,
            Some(Err(kube::Error::Api(status))) if status.code == 409 || status.code == 404 => None,
            Some(Err(error)) => Some(cause::told(error)),
            None => Some(format!("no answer for {} s", REQUEST.as_secs())),
        };
        let was_failing = std::mem::replace(&mut self.known.borrow_mut().failing, why.is_some());
        if let (Some(why), false) = (why, was_failing) {
            let Settings { namespace, name, .. } = &*self.settings;
            tracing::warn!("the API server cannot be asked for Lease {namespace}/{name}, and is asked again: {why}");
        }
        answer
    }
}

/// How a write of the Lease ended.
enum Wrote {
    Held,
    /// It is not as it was known.
    Refused,
    /// It may have been accepted or not.
    Failed,
}

fn now() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string()
}

fn post() -> PostParams {
    PostParams { field_manager: Some(names::CONTROLLER.into()), ..PostParams::default() }
}
