//! What the node has entered against what its claims hold.

use std::collections::{BTreeMap, BTreeSet};

use heddle_core::claim::Prepared;
use heddle_core::fault::Fault;
use heddle_core::imex::{Answer, agreement};

use super::{ChannelAllocator, Message, RETRY};
use crate::node_link;
use crate::runtime::{AskError, Cx, Reply};

impl ChannelAllocator {
    /// Compares what the claims hold with what the node's object lists: what nobody holds is left, what was lost is put
    /// back.
    pub(super) fn reconcile(&mut self, cx: &mut Cx<'_, Self>) {
        let abandoned = self.abandoned();
        if !abandoned.is_empty() {
            self.settings.node_link.tell(node_link::Message::Leave { cd_uids: abandoned });
        }
        let lost = match &self.view {
            Some(view) => {
                let (status, domain) = (view.node.status.as_ref(), view.domain.as_deref());
                let clashes = self.ledger.clashes(status, domain);
                for (cd_uid, fault) in clashes.iter().filter(|(uid, _)| !self.clashes.contains_key(*uid)) {
                    tracing::error!(compute_domain = %cd_uid, reason = fault.reason, "{fault}");
                }
                let lost = self.ledger.lost(status);
                let said = status.is_some_and(|status| agreement::says_otherwise(&status.conditions));
                if self.ledger.is_restored() && (clashes != self.clashes || (said && clashes.is_empty())) {
                    let draft = agreement::condition(&clashes);
                    self.settings.node_link.tell(node_link::Message::Condition(draft));
                }
                self.clashes = clashes;
                lost
            }
            None => BTreeMap::new(),
        };
        for (cd_uid, entry) in lost {
            if !self.keeping.insert(cd_uid.clone()) {
                continue;
            }
            let entry = heddle_core::api::NodeChannel { since: jiff::Timestamp::now().to_string(), ..entry };
            let link = self.settings.node_link.clone();
            let uid = cd_uid.clone();
            let asked = async move { link.ask(|reply| node_link::Message::Keep { cd_uid: uid, entry, reply }).await };
            cx.spawn_then("keep", asked, move |answer| Message::Kept { cd_uid, answer });
        }
        self.say_whether_the_daemon_may_be_ended();
    }

    /// What is to be left. A claim that waits for one of these waits until that is done.
    pub(super) fn abandoned(&self) -> BTreeSet<String> {
        self.ledger.abandoned(self.node_status(), self.view.as_ref().and_then(|view| view.domain.as_deref()))
    }

    pub(super) fn kept(&mut self, cd_uid: String, answer: Result<Answer, AskError>, cx: &mut Cx<'_, Self>) {
        self.keeping.remove(&cd_uid);
        let verified = match answer {
            Ok(Answer::Entered(channel)) => {
                tracing::warn!(compute_domain = %cd_uid, channel, "the node's entry was lost and is put back");
                Ok(())
            }
            Ok(Answer::Refuse(fault) | Answer::Wait(fault)) => Err(fault),
            Ok(Answer::NeedsChannel) => Ok(()),
            Err(error) => {
                cx.after(RETRY, Message::Again);
                Err(error.into())
            }
        };
        for reply in self.verifying.remove(&cd_uid).into_iter().flatten() {
            reply.send(verified.clone());
        }
    }

    pub(super) fn verify(&mut self, prepared: Prepared, reply: Reply<Result<(), Fault>>, cx: &mut Cx<'_, Self>) {
        self.ledger.grant(&prepared);
        self.reconcile(cx);
        // Without a view there is nothing to compare with: the entry was written durably before the checkpoint, and
        // while the API is away nobody can have taken it away.
        if let Some(clash) = self.clashes.get(&prepared.cd_uid) {
            reply.send(Err(clash.clone()));
        } else if self.keeping.contains(&prepared.cd_uid) {
            self.verifying.entry(prepared.cd_uid).or_default().push(reply);
        } else {
            reply.send(Ok(()));
        }
    }
}
