//! What a [`DraServer`] does before the kubelet may call: disk, CDI directory and ChannelAllocator come to agree.

use std::collections::BTreeSet;
use std::time::Duration;

use heddle_core::api::IMEXNodeStatus;
use heddle_core::claim::checkpoint::{Checkpoint, State};
use heddle_core::claim::{Prepared, cdi, rebuild};
use heddle_core::fault::{Class, Fault, reason};

use super::context::Driver;
use super::lookup;
use super::server::{DraServer, Message};
use crate::channel_allocator;
use crate::runtime::Cx;

/// Pause before a claim of an earlier boot is looked up again, while the API server cannot be asked.
const LEFTOVER_RETRY: Duration = Duration::from_secs(30);

impl DraServer {
    /// Brings disk, CDI directory and ChannelAllocator into agreement, before the kubelet may call.
    pub(super) fn recover(&mut self, cx: &mut Cx<'_, Self>) -> Result<(), Fault> {
        // In this order: another agent that lives writes its checkpoint first and its CDI file second, so a file found
        // here has a checkpoint there.
        let found = self.context.cdi.found()?;
        let boot_id = self.context.devices.boot_id();
        let mut known = BTreeSet::new();
        let mut readable = BTreeSet::new();
        for (&driver, store) in &self.context.checkpoints {
            let loaded = store.load()?;
            for checkpoint in loaded.checkpoints {
                readable.insert(checkpoint.claim.uid.clone());
                if let Some(cd) = &checkpoint.compute_domain {
                    self.context.neighbours.come(&checkpoint.claim, &cd.uid);
                }
                let this_boot = boot_id.as_ref().is_ok_and(|id| *id == checkpoint.boot_id);
                if let Some(file) = cdi::file(&checkpoint)?.filter(|_| this_boot) {
                    known.insert(file.name);
                }
                if checkpoint.state == State::Tombstone || !this_boot {
                    self.look_up_leftover(driver, checkpoint, cx);
                }
            }
        }
        for name in found.difference(&known) {
            // A claim's checkpoint is there before its CDI file and until after it. Where it cannot be read, or somebody
            // has removed it, a container may still run with the claim: the file stays.
            match cdi::claim_of(name).filter(|uid| !readable.contains(*uid)) {
                Some(uid) => drop(self.lost.insert(uid.to_owned(), name.clone())),
                None => {
                    tracing::info!(file = name, "removed the CDI file of a claim that is not prepared in this boot");
                    self.context.cdi.remove(name)?;
                }
            }
        }
        self.renew_files()?;
        if self.lost.is_empty() {
            return self.restore();
        }
        let (client, node, me) = (self.context.client.clone(), self.context.node.clone(), cx.address());
        cx.spawn("rebuild", async move {
            let status = lookup::node_status(&client, &node).await;
            me.tell(Message::Rebuild(Box::new(status)));
            Ok(())
        });
        Ok(())
    }

    /// Makes lost checkpoints anew, as far as what they hold is concerned.
    pub(super) fn rebuild(&mut self, status: &IMEXNodeStatus) -> Result<(), Fault> {
        let boot_id = self.context.devices.boot_id()?;
        let store = self.context.store(Driver::ComputeDomain)?;
        for (uid, name) in &self.lost {
            let contents = self.context.cdi.read(name)?.unwrap_or_default();
            let Some(checkpoint) = rebuild::checkpoint(uid, &boot_id, name, &contents, status) else { continue };
            match store.read(uid) {
                Ok(None) => {}
                // Prepared anew meanwhile.
                Ok(Some(_)) => continue,
                // A newer release's checkpoint is not ours to replace; what it holds is held all the same.
                Err(_) => {
                    let mut granted = self.context.granted.borrow_mut();
                    granted.extend(checkpoint.held().map(|held| (uid.clone(), held)));
                    continue;
                }
            }
            let held = checkpoint.channel.as_ref().map(|channel| channel.channel);
            tracing::warn!(
                claim = uid,
                channel = held,
                "a lost checkpoint is made anew from the CDI file and the IMEXNode"
            );
            store.write(&checkpoint)?;
            if let Some(file) = cdi::file(&checkpoint)? {
                self.context.cdi.keep(&file);
            }
        }
        self.lost.clear();
        self.restore()
    }

    /// Sees to it that the files of all claims that are prepared in this boot are there, with the major that channels
    /// have now: the driver may have been loaded anew.
    pub(super) fn renew_files(&self) -> Result<(), Fault> {
        let Ok(boot_id) = self.context.devices.boot_id() else { return Ok(()) };
        let major = self.context.devices.channel_major().ok();
        for store in self.context.checkpoints.values() {
            let prepared = store.load()?.checkpoints.into_iter();
            for mut checkpoint in prepared.filter(|c| c.state == State::Prepared && c.boot_id == boot_id) {
                let old = checkpoint.channel.as_mut().zip(major).filter(|(channel, major)| channel.major != *major);
                if let Some((channel, major)) = old {
                    tracing::warn!(claim = %checkpoint.claim, major, "channels have another major number now");
                    channel.major = major;
                    store.write(&checkpoint)?;
                }
                if let Some(file) = cdi::file(&checkpoint)? {
                    self.context.cdi.keep(&file);
                }
            }
        }
        for name in self.context.cdi.repair() {
            tracing::info!(file = name, "put back a CDI file");
        }
        Ok(())
    }

    /// A claim that was cut off in its undo, or one of an earlier boot, of which nothing can run any more: the kubelet
    /// may have lost its own notes, so the API server is asked whether it still exists.
    fn look_up_leftover(&self, driver: Driver, checkpoint: Checkpoint, cx: &mut Cx<'_, Self>) {
        let (client, server) = (self.context.client.clone(), cx.address());
        cx.spawn("leftover", async move {
            let claim = checkpoint.claim;
            if checkpoint.state != State::Tombstone {
                loop {
                    match lookup::claim(&client, &claim).await {
                        Ok(found) if found.metadata.uid.as_deref() == Some(claim.uid.as_str()) => return Ok(()),
                        Err(fault) if fault.class != Class::Permanent => tokio::time::sleep(LEFTOVER_RETRY).await,
                        Ok(_) | Err(_) => break,
                    }
                }
            }
            server.tell(Message::Leftover { driver, claim });
            Ok(())
        });
    }

    /// Tells the ChannelAllocator what the claims hold.
    pub(super) fn restore(&self) -> Result<(), Fault> {
        let mut claims: Vec<Prepared> = self.context.granted.borrow().values().cloned().collect();
        for store in self.context.checkpoints.values() {
            claims.extend(store.load()?.checkpoints.iter().filter_map(Checkpoint::held));
        }
        tracing::info!(claims = claims.len(), "the ChannelAllocator is told what the claims of this node hold");
        self.context.allocator.send(channel_allocator::Message::Restore { claims }).map_err(|error| {
            Fault::retryable(
                reason::ACTOR_FAILED,
                format!("the ChannelAllocator could not be told of the claims: {error}"),
            )
        })
    }
}
