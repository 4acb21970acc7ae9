use crate::api::{ComputeDomainRef, ImexMode, IsolationMode};
use crate::condition::{Draft, draft};
use crate::fault::{Fault, reason};
use crate::inventory::Notice;

/// Type of the IMEXNode's condition.
pub const IMEX_MODE: &str = "ImexMode";

/// Who runs the node's IMEX daemon, and who is to run it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    /// The mode that the node acts by.
    pub acts: ImexMode,
    /// The mode that it is set to.
    pub wanted: ImexMode,
    /// Claims that were prepared under the other mode; 0 where both are one.
    pub holding: usize,
}

impl Standing {
    /// It acts as it is set to.
    pub fn settled(mode: ImexMode) -> Self {
        Self { acts: mode, wanted: mode, holding: 0 }
    }

    /// Why the node prepares no new claim: it goes over to the other mode when the last one has left.
    pub fn withholds(&self) -> Option<Fault> {
        let Self { acts, wanted, holding } = self;
        (acts != wanted).then(|| {
            let claims = if *holding == 1 { "one claim".to_owned() } else { format!("{holding} claims") };
            Fault::retryable(
                reason::IMEX_MODE_PENDING,
                format!(
                    "this node is set to {wanted} IMEX (--imex-mode) and has {claims} prepared while it was {acts}: these go on, no \
                     new one is prepared, and the node goes over by itself when the last has left; end their pods, or set the \
                     mode back"
                ),
            )
        })
    }

    /// Why a ComputeDomain of this mode gets nothing here, whatever else is well.
    pub fn refuses(&self, cd: &ComputeDomainRef, isolation: IsolationMode, node: &str) -> Option<Fault> {
        let host_managed = self.acts == ImexMode::HostManaged || self.wanted == ImexMode::HostManaged;
        let exclusive =
            (host_managed && isolation == IsolationMode::Domain).then(|| host_refusal(cd, &format!("node {node}")));
        exclusive.or_else(|| self.withholds())
    }

    /// The IMEXNode's condition.
    pub fn condition(&self) -> Draft {
        match (self.withholds(), self.acts) {
            (Some(fault), _) => draft(IMEX_MODE, "False", fault.reason, fault.message),
            (None, ImexMode::DriverManaged) => {
                draft(IMEX_MODE, "True", "DriverManaged", "Heddle's runner runs the IMEX daemon of this node")
            }
            (None, ImexMode::HostManaged) => draft(
                IMEX_MODE,
                "True",
                reason::HOST_MANAGED_IMEX,
                "the host runs the IMEX daemon of this node; Heddle only asks it how it is, and isolationMode: Domain is refused",
            ),
        }
    }

    /// What people should read of it on the Node, where it was `before`.
    pub fn notice(&self, before: Option<&Self>) -> Option<Notice> {
        match (self.withholds(), before) {
            (Some(fault), _) => Some(Notice { reason: fault.reason, note: fault.message, warning: true }),
            (None, Some(before)) if before.acts != self.acts => Some(Notice {
                reason: IMEX_MODE_CHANGED,
                note: format!("IMEX on this node is {} now, it was {}", self.acts, before.acts),
                warning: false,
            }),
            (None, _) => None,
        }
    }
}

/// Reason of the Event.
pub const IMEX_MODE_CHANGED: &str = "ImexModeChanged";

/// What is known of the mode under which a node's claims were prepared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Known {
    /// What the agent has kept on the disk.
    pub kept: Option<ImexMode>,
    /// What the node's object says, once that was read: an agent of before modes were known says nothing, and was
    /// driver-managed.
    pub reported: Option<ImexMode>,
    /// Claims that hold a channel, once the checkpoints were read.
    pub prepared: Option<usize>,
}

/// By which mode the node acts that is set to `wanted`; none while that cannot be told.
///
/// A mode is never changed under a claim: its daemon would end, or be another's.
pub fn standing(wanted: ImexMode, known: Known) -> Option<Standing> {
    if known.kept == Some(wanted) {
        return Some(Standing::settled(wanted));
    }
    match (known.prepared?, known.kept.or(known.reported)) {
        (0, _) => Some(Standing::settled(wanted)),
        (_, None) => None,
        (_, Some(acts)) if acts == wanted => Some(Standing::settled(wanted)),
        (holding, Some(acts)) => Some(Standing { acts, wanted, holding }),
    }
}

/// Why an exclusive ComputeDomain gets no domain of its own: the same words in the claim's Event and in the condition.
pub fn host_refusal(cd: &ComputeDomainRef, whose: &str) -> Fault {
    Fault::permanent(
        reason::HOST_MANAGED_IMEX,
        format!(
            "ComputeDomain {}/{} asks for an IMEX domain of its own (isolationMode: Domain), and the IMEX daemon of {whose} is the \
             host's (host-managed), which Heddle cannot move to another domain; create it anew with isolationMode: Channel, or \
             let its pods run where IMEX is driver-managed",
            cd.namespace, cd.name
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use ImexMode::{DriverManaged, HostManaged};

    fn known(kept: Option<ImexMode>, reported: Option<ImexMode>, prepared: Option<usize>) -> Known {
        Known { kept, reported, prepared }
    }

    #[test]
    fn issue_1163_a_mode_is_never_changed_under_a_claim() {
        let settled = |mode| Some(Standing::settled(mode));
        let held = |acts, wanted, holding| Some(Standing { acts, wanted, holding });
        for (wanted, known, expected) in [
            (HostManaged, known(Some(HostManaged), None, None), settled(HostManaged)),
            (HostManaged, known(Some(DriverManaged), None, None), None),
            (HostManaged, known(Some(DriverManaged), None, Some(2)), held(DriverManaged, HostManaged, 2)),
            (HostManaged, known(Some(DriverManaged), Some(HostManaged), Some(2)), held(DriverManaged, HostManaged, 2)),
            (HostManaged, known(Some(DriverManaged), None, Some(0)), settled(HostManaged)),
            (DriverManaged, known(Some(HostManaged), None, Some(1)), held(HostManaged, DriverManaged, 1)),
            (DriverManaged, known(None, None, Some(0)), settled(DriverManaged)),
            // The state folder was lost, or the agent of before knew of no modes.
            (DriverManaged, known(None, None, Some(1)), None),
            (DriverManaged, known(None, Some(DriverManaged), Some(1)), settled(DriverManaged)),
            (HostManaged, known(None, Some(DriverManaged), Some(1)), held(DriverManaged, HostManaged, 1)),
            (HostManaged, known(None, Some(HostManaged), Some(1)), settled(HostManaged)),
        ] {
            assert_eq!(standing(wanted, known), expected, "{wanted} {known:?}");
        }
    }

    #[test]
    fn issue_1163_one_that_waits_says_for_what_and_then_that_it_has_gone_over() {
        let held = Standing { acts: DriverManaged, wanted: HostManaged, holding: 3 };
        let fault = held.withholds().unwrap();
        assert!(fault.message.contains("host-managed") && fault.message.contains("3 claims"), "{fault}");
        assert_eq!((held.condition().status, held.condition().message), ("False", fault.message.clone()));
        assert_eq!(held.notice(None).unwrap().note, fault.message);
        let gone_over = Standing::settled(HostManaged);
        assert_eq!(gone_over.notice(Some(&held)).unwrap().reason, IMEX_MODE_CHANGED);
        assert_eq!(gone_over.notice(Some(&gone_over)), None);
        assert_eq!(gone_over.notice(None), None);
        assert_eq!(gone_over.condition().status, "True");
    }

    #[test]
    fn an_exclusive_compute_domain_is_refused_where_the_daemon_is_or_will_be_the_hosts() {
        let cd = ComputeDomainRef { namespace: "team".into(), name: "red".into(), uid: "u".into() };
        let reason = |standing: Standing, mode| standing.refuses(&cd, mode, "n1").map(|fault| fault.reason);
        let (host, driver) = (Standing::settled(HostManaged), Standing::settled(DriverManaged));
        assert_eq!(reason(host.clone(), IsolationMode::Domain), Some(reason::HOST_MANAGED_IMEX));
        assert_eq!(reason(host, IsolationMode::Channel), None);
        assert_eq!(reason(driver, IsolationMode::Domain), None);
        let held = |acts, wanted| Standing { acts, wanted, holding: 1 };
        for (acts, wanted) in [(DriverManaged, HostManaged), (HostManaged, DriverManaged)] {
            assert_eq!(reason(held(acts, wanted), IsolationMode::Domain), Some(reason::HOST_MANAGED_IMEX));
            assert_eq!(reason(held(acts, wanted), IsolationMode::Channel), Some(reason::IMEX_MODE_PENDING));
        }
        let fault = host_refusal(&cd, "node n1");
        assert_eq!(fault.class, crate::fault::Class::Permanent);
        assert!(fault.message.contains("team/red") && fault.message.contains("isolationMode: Channel"), "{fault}");
    }
}
