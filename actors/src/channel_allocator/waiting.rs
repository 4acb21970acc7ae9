//! The claims that wait for their channel: each with its asker, and with what it waits for.

use heddle_core::api::{ComputeDomainRef, IsolationMode};
use heddle_core::claim::{Grant, Prepared};
use heddle_core::fault::Fault;
use tokio::time::Instant;

use super::ChannelAllocator;
use crate::runtime::Reply;

/// A claim that waits.
pub(super) struct Waiting {
    pub(super) cd: ComputeDomainRef,
    pub(super) mode: IsolationMode,
    pub(super) reply: Reply<Result<Grant, Fault>>,
    pub(super) missing: Fault,
    /// Since when, for the same reason.
    pub(super) since: Instant,
}

impl ChannelAllocator {
    /// An asker that went away without a word died; whoever comes for the claim next asks anew.
    pub(super) fn forget_askers_that_went_away(&mut self) {
        let ledger = &mut self.ledger;
        self.waiting.retain(|claim_uid, waiting| {
            let gone = waiting.reply.is_closed();
            if gone {
                ledger.release(claim_uid);
            }
            !gone
        });
    }

    pub(super) fn note(&mut self, claim_uid: &str, missing: Fault) {
        if let Some(waiting) = self.waiting.get_mut(claim_uid)
            && waiting.missing != missing
        {
            tracing::info!(claim = claim_uid, reason = missing.reason, "a claim waits: {missing}");
            if waiting.missing.reason != missing.reason {
                waiting.since = Instant::now();
            }
            waiting.missing = missing;
        }
    }

    pub(super) fn note_all(&mut self, cd_uid: &str, missing: &Fault) {
        for claim_uid in self.waiting_for(cd_uid) {
            self.note(&claim_uid, missing.clone());
        }
    }

    pub(super) fn waiting_for(&self, cd_uid: &str) -> Vec<String> {
        let of_this = self.waiting.iter().filter(|(_, waiting)| waiting.cd.uid == cd_uid);
        of_this.map(|(claim_uid, _)| claim_uid.clone()).collect()
    }

    /// The ComputeDomain, if a claim waits for it; its mode never changes.
    pub(super) fn wanted(&self, cd_uid: &str) -> Option<(ComputeDomainRef, IsolationMode)> {
        self.waiting.values().find(|w| w.cd.uid == cd_uid).map(|w| (w.cd.clone(), w.mode))
    }

    /// Ends an enter. A claim that gets no channel holds nothing.
    pub(super) fn answer(&mut self, claim_uid: &str, answer: Result<Grant, Fault>) {
        let Some(waiting) = self.waiting.remove(claim_uid) else { return };
        match &answer {
            Ok(Grant::Channel { channel, domain, .. }) if !waiting.reply.is_closed() => self.ledger.grant(&Prepared {
                claim_uid: claim_uid.to_owned(),
                cd_uid: waiting.cd.uid.clone(),
                channel: *channel,
                domain: domain.clone(),
            }),
            _ => self.ledger.release(claim_uid),
        }
        waiting.reply.send(answer);
    }

    pub(super) fn refuse_all(&mut self, cd_uid: &str, fault: &Fault) {
        for claim_uid in self.waiting_for(cd_uid) {
            self.answer(&claim_uid, Err(fault.clone()));
        }
    }
}
