use std::time::Duration;

use heddle_core::api::{DaemonStatus, ImexMode, LinksState, MissingPeer, PeerLinks};
use heddle_core::imex::{DaemonState, HostDaemon, Standing, is_news, refusal, shared_domain_name};
use heddle_core::inventory::Fabric;
use heddle_proto::runner::State;

use super::message::Message;
use super::{Busy, ImexSupervisor};
use crate::channel_allocator::Ready;
use crate::runtime::Cx;
use crate::slice_publisher::Usable;

/// How long a daemon that is not READY may stay so before it is reported: the states of a start pass by without a write
/// each, and an agent that has just begun does not withdraw what the one before it offered.
const SETTLE: Duration = Duration::from_millis(500);
/// What nobody acts upon is reported no more often than this: else a node that boots would write its object at each step of
/// its daemon's start, and once more for each peer that comes.
const DETAILS: Duration = Duration::from_secs(5);

impl ImexSupervisor {
    /// Says what is to be said, where it differs from what was said.
    pub(super) fn report(&mut self, cx: &mut Cx<'_, Self>) {
        if self.busy == Some(Busy::Disruptive) {
            return;
        }
        let ready = self.ready();
        if self.said_ready.as_ref() != Some(&ready) {
            match &ready {
                Ok(domain) => tracing::info!(domain, "the IMEX daemon is READY"),
                Err(why) => tracing::info!("IMEX cannot be used on this node: {why}"),
            }
            (self.settings.ready)(ready.clone());
            self.said_ready = Some(ready.clone());
        }
        let now = tokio::time::Instant::now();
        if ready.is_ok() {
            self.not_ready = None;
        } else if self.not_ready.is_none() {
            self.not_ready = Some(now);
            cx.after(SETTLE, Message::Due);
        }
        let since = self.not_ready.map_or(Duration::MAX, |since| now.duration_since(since));
        // Until it is known who runs the daemon, what another agent has said stays.
        if since >= SETTLE && self.mode().is_some() {
            self.report_status(&ready, now, cx);
            self.report_usable(ready);
        }
    }

    fn report_status(&mut self, ready: &Ready, now: tokio::time::Instant, cx: &mut Cx<'_, Self>) {
        // A runner that was never met says nothing, and the object keeps what it said before the agent's start.
        let Some(state) = &self.state else { return };
        let of_host = self.mode() == Some(ImexMode::HostManaged);
        // Before the clique is known it cannot be said what a host's daemon serves.
        if of_host && self.clique.is_none() {
            return;
        }
        let unchecked = self.host.as_ref().filter(|_| of_host).and_then(HostDaemon::unchecked);
        let mut status = DaemonStatus {
            message: ready.as_ref().err().cloned().or(unchecked),
            recovery_action: self.inventory.as_ref().and_then(|inventory| inventory.recovery_action.clone()),
            ..daemon_status(state)
        };
        if of_host {
            status.domain = self.clique.as_ref().map(shared_domain_name);
            self.keep_since(&mut status);
        } else if self.runner.is_none() {
            self.unhear_links(&mut status);
            status.state = DaemonState::Unavailable.to_string();
            status.since = self
                .said_status
                .as_ref()
                .filter(|said| said.state == status.state)
                .map_or_else(|| jiff::Timestamp::now().to_string(), |said| said.since.clone());
        }
        if self.said_status.as_ref() == Some(&status) {
            return;
        }
        let pause = self.said_at.map_or(Duration::ZERO, |at| DETAILS.saturating_sub(now.duration_since(at)));
        if self.said_status.as_ref().is_some_and(|said| !is_news(said, &status)) && !pause.is_zero() {
            if !self.details_due {
                self.details_due = true;
                cx.after(pause, Message::Details);
            }
            return;
        }
        (self.settings.status)(status.clone());
        self.said_status = Some(status);
        self.said_at = Some(now);
    }

    /// Nobody can be asked for the connections while the runner is away; what it said last stays.
    fn unhear_links(&self, status: &mut DaemonStatus) {
        let Some(links) = &mut status.links else { return };
        let said = self.said_status.as_ref().and_then(|said| said.links.as_ref());
        let said = said.filter(|said| said.state == LinksState::Unknown).map(|said| said.since.clone());
        links.since = said.unwrap_or_else(|| jiff::Timestamp::now().to_string());
        links.state = LinksState::Unknown;
        links.message = Some(self.lost.clone());
    }

    /// A host's daemon tells nobody since when it is as it is: what an agent has reported before stays while it is true.
    fn keep_since(&self, status: &mut DaemonStatus) {
        let reported = self.view.as_ref().and_then(|view| view.node.status.as_ref());
        let reported = reported.filter(|reported| reported.imex_mode == ImexMode::HostManaged);
        if let Some(known) = reported.map(|reported| &reported.daemon).filter(|known| known.state == status.state)
            && self.said_status.as_ref().is_none_or(|said| said.state == status.state)
        {
            status.since.clone_from(&known.since);
        }
    }

    /// A slot can be used where the fabric and the daemon can and the second door is closed, and where there is no
    /// fabric: it then gives no channel.
    fn report_usable(&mut self, ready: Ready) {
        let Some(inventory) = &self.inventory else { return };
        // What another agent has published stays until it is known whether it may.
        let Some(guard) = self.guard.as_ref().filter(|guard| !guard.awaits_look()) else { return };
        let view = self.view.as_ref();
        let refused =
            || view.and_then(|view| refusal(&view.node)).filter(|_| matches!(inventory.fabric, Fabric::Ready(_)));
        let pending = || self.standing.as_ref().and_then(Standing::withholds);
        let withheld = guard.withholds().or_else(pending).filter(|_| inventory.fabric != Fabric::None).or_else(refused);
        let reason = match (&inventory.fabric, ready) {
            (Fabric::None, _) | (Fabric::Ready(_), Ok(_)) => None,
            (Fabric::Ready(_), Err(why)) => Some(why),
            (Fabric::Pending(what), _) => Some(format!("the NVLink fabric is coming up: {what}")),
            (Fabric::Unhealthy(why), _) => Some(format!("the NVLink fabric is not healthy: {why}")),
        };
        let withheld_for = withheld.as_ref().map(|fault| fault.reason);
        let reason = withheld.map(|fault| fault.message).or(reason);
        let usable = Usable {
            usable: reason.is_none(),
            withheld: withheld_for,
            domain: view.and_then(|view| view.node.spec.domain.clone()),
            kind: view.and_then(|view| view.domain.as_ref()).map(|domain| domain.spec.kind),
            host_managed: self.mode() == Some(ImexMode::HostManaged),
            reason: reason.unwrap_or_default(),
        };
        if self.said_usable.as_ref() != Some(&usable) {
            (self.settings.usable)(usable.clone());
            self.said_usable = Some(usable);
        }
    }
}

fn daemon_status(state: &State) -> DaemonStatus {
    DaemonStatus {
        state: state.daemon_state.clone(),
        domain: Some(state.domain.clone()).filter(|domain| !domain.is_empty()),
        index: state.daemon_index,
        node_map_hash: Some(state.node_map_sha256.clone()).filter(|hash| !hash.is_empty()),
        since: time(state.since_unix_ms),
        version: state.daemon_version.clone(),
        peers_connected: state.peers_connected,
        links: peer_links(state),
        certificate_not_after: Some(state.identity_not_after_unix)
            .filter(|until| *until > 0)
            .and_then(|until| jiff::Timestamp::from_second(until).ok().map(|until| until.to_string())),
        ..DaemonStatus::default()
    }
}

/// None before the daemon was asked, and from a runner that cannot tell.
fn peer_links(state: &State) -> Option<PeerLinks> {
    if state.links_since_unix_ms == 0 {
        return None;
    }
    let missing = state.missing.iter().map(|(index, word)| MissingPeer { index: *index, state: word.clone() });
    let mut missing: Vec<_> = missing.collect();
    missing.sort();
    let mut connected = state.connected.clone();
    connected.sort_unstable();
    let unknown = Some(state.links_unknown.clone()).filter(|why| !why.is_empty());
    Some(PeerLinks {
        state: if unknown.is_some() { LinksState::Unknown } else { LinksState::Known },
        since: time(state.links_since_unix_ms),
        message: unknown,
        connected,
        missing,
    })
}

fn time(unix_ms: i64) -> String {
    jiff::Timestamp::from_millisecond(unix_ms).map(|at| at.to_string()).unwrap_or_default()
}
