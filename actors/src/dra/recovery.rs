//! What a [`DraServer`] does before the kubelet may call, and after somebody has removed its state: disk, CDI directory
//! and ChannelAllocator come to agree.

use std::collections::BTreeSet;
use std::time::Duration;

use heddle_core::api::IMEXNodeStatus;
use heddle_core::claim::checkpoint::{Checkpoint, State};
use heddle_core::claim::rebuild::{self, Traces};
use heddle_core::claim::{Prepared, cdi};
use heddle_core::fault::{Class, Fault, reason};
use k8s_openapi::api::resource::v1::ResourceClaim;

use super::checkpoint_store::Memory;
use super::context::{Driver, token};
use super::message::Message;
use super::server::DraServer;
use super::{events, lookup};
use crate::channel_allocator;
use crate::runtime::Cx;

/// Pause before a claim of an earlier boot is looked up again, while the API server cannot be asked.
const LEFTOVER_RETRY: Duration = Duration::from_secs(30);

impl DraServer {
    /// Brings disk, CDI directory and ChannelAllocator into agreement.
    pub(super) fn recover(&mut self, cx: &mut Cx<'_, Self>) -> Result<(), Fault> {
        // In this order: another agent that lives writes its checkpoint first and its CDI file second, so a file found
        // here has a checkpoint there.
        self.context.cdi.sweep()?;
        let found = self.context.cdi.found()?;
        let boot_id = self.context.devices.boot_id();
        let mut known = BTreeSet::new();
        let mut readable = BTreeSet::new();
        for driver in self.settings.drivers() {
            for checkpoint in self.load(driver)? {
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
                Some(uid) => self.lose(uid.to_owned()),
                None => {
                    tracing::info!(file = name, "removed the CDI file of a claim that is not prepared in this boot");
                    self.context.cdi.remove(name)?;
                }
            }
        }
        self.renew_files(cx)?;
        self.restore(cx)
    }

    /// The readable checkpoints of a driver. The others' claims are lost.
    fn load(&mut self, driver: Driver) -> Result<Vec<Checkpoint>, Fault> {
        let loaded = self.context.store(driver)?.load()?;
        if !loaded.quarantined.is_empty() {
            self.context.events.tell(events::Message::Quarantined { claims: loaded.quarantined.clone() });
            // A GPU claim holds nothing that must be known, and an Unprepare of it finds nothing to undo.
            if driver == Driver::ComputeDomain {
                loaded.quarantined.into_iter().for_each(|uid| self.lose(uid));
            }
        }
        Ok(loaded.checkpoints)
    }

    /// Something of the claim is there, and its checkpoint is not. If something is being done for it, that ends in a
    /// checkpoint or in nothing at all; an undone claim must not be made anew.
    fn lose(&mut self, uid: String) {
        if !self.preparers.contains_key(&(Driver::ComputeDomain, uid.clone())) {
            self.lost.insert(uid);
        }
    }

    /// Asks for what tells of the lost claims, if there are any.
    fn seek_lost(&mut self, cx: &mut Cx<'_, Self>) {
        if self.lost.is_empty() || self.seeking.as_ref().is_some_and(|task| !task.is_finished()) {
            return;
        }
        let (client, node) = (self.context.client.clone(), self.context.node.clone());
        let seek = async move { (lookup::node_status(&client, &node).await, lookup::all_claims(&client).await) };
        let found = |(status, claims)| Message::Rebuild { status: Box::new(status), claims };
        self.seeking = Some(cx.spawn_then("rebuild", seek, found));
    }

    /// Makes lost checkpoints anew, as far as what they hold is concerned.
    pub(super) fn rebuild(
        &mut self,
        status: &IMEXNodeStatus,
        claims: &[ResourceClaim],
        cx: &mut Cx<'_, Self>,
    ) -> Result<(), Fault> {
        for uid in std::mem::take(&mut self.lost) {
            // Somebody is at it: he finds the CDI file by himself.
            if self.preparers.contains_key(&(Driver::ComputeDomain, uid.clone())) {
                continue;
            }
            let claim = claims.iter().find(|claim| claim.metadata.uid.as_deref() == Some(uid.as_str()));
            if let Err(fault) = self.rebuild_one(&uid, claim, status) {
                // What it holds is not known yet; so the ChannelAllocator must not be told that it is all.
                self.lost.insert(uid);
                return Err(fault);
            }
        }
        self.restore(cx)
    }

    fn rebuild_one(&self, uid: &str, claim: Option<&ResourceClaim>, status: &IMEXNodeStatus) -> Result<(), Fault> {
        let store = self.context.store(Driver::ComputeDomain)?;
        // A newer release's checkpoint is not ours to replace; what it holds is held all the same.
        let newer = match store.read(uid) {
            Ok(Memory::Checkpoint(_)) => return Ok(()),
            Ok(_) => false,
            Err(_) => true,
        };
        let file = self.context.cdi.token_of(uid)?.map(|token| cdi::file_name(uid, &token));
        let contents = file.as_ref().map(|name| self.context.cdi.read(name)).transpose()?.flatten();
        if let (None, Some(name), false) = (claim, &file, newer) {
            tracing::info!(file = name, "removed the CDI file of a claim that does not exist any more");
            return self.context.cdi.remove(name);
        }
        let traces = Traces {
            uid,
            claim,
            node: status,
            node_name: &self.context.node,
            boot_id: &self.context.devices.boot_id()?,
            major: self.context.devices.channel_major().ok(),
            file: file.as_deref().map(|name| (name, contents.as_deref().unwrap_or_default())),
            token: &token()?,
        };
        let Some(checkpoint) = rebuild::checkpoint(&traces) else {
            tracing::warn!(claim = uid, "nothing tells what the claim of a lost checkpoint holds");
            return Ok(());
        };
        if newer {
            let held = checkpoint.held().map(|held| (uid.to_owned(), held));
            self.context.granted.borrow_mut().extend(held);
            return Ok(());
        }
        let held = checkpoint.channel.as_ref().map(|channel| channel.channel);
        tracing::warn!(claim = uid, channel = held, "a lost checkpoint is made anew from the API and the CDI file");
        store.write(&checkpoint)?;
        match cdi::file(&checkpoint)? {
            Some(file) => self.context.cdi.write(&file),
            None => Ok(()),
        }
    }

    /// Sees to it that the files of all claims that are prepared in this boot are there, with the major that channels
    /// have now: the driver may have been loaded anew.
    pub(super) fn renew_files(&mut self, cx: &mut Cx<'_, Self>) -> Result<(), Fault> {
        let major = self.context.devices.channel_major().ok();
        if let Ok(boot_id) = self.context.devices.boot_id() {
            for driver in self.settings.drivers() {
                for checkpoint in self.load(driver)?.into_iter().filter(|checkpoint| checkpoint.boot_id == boot_id) {
                    self.renew(driver, checkpoint, major)?;
                }
            }
            for name in self.context.cdi.repair() {
                tracing::info!(file = name, "put back a CDI file");
            }
        }
        self.seek_lost(cx);
        Ok(())
    }

    fn renew(&self, driver: Driver, mut checkpoint: Checkpoint, major: Option<u32>) -> Result<(), Fault> {
        let Some(file) = cdi::file(&checkpoint)? else { return Ok(()) };
        // A Prepare that was cut off goes on when the kubelet asks again, and need not have come to its file. One that
        // was made anew from its traces has its file.
        let has_file = match checkpoint.state {
            State::Prepared => true,
            State::Preparing => self.context.cdi.read(&file.name)?.is_some(),
            State::Tombstone => false,
        };
        if !has_file {
            return Ok(());
        }
        let old = checkpoint.channel.as_mut().zip(major).filter(|(channel, major)| channel.major != *major);
        if let Some((channel, major)) = old {
            tracing::warn!(claim = %checkpoint.claim, major, "channels have another major number now");
            channel.major = major;
            self.context.store(driver)?.write(&checkpoint)?;
        }
        if let Some(file) = cdi::file(&checkpoint)? {
            self.context.cdi.keep(&file);
        }
        Ok(())
    }

    /// Puts back the state folders if somebody has removed them, and what was in them as far as other things tell.
    pub(super) fn guard_state(&mut self, cx: &mut Cx<'_, Self>) -> Result<(), Fault> {
        let mut gone = false;
        for store in self.context.checkpoints.values() {
            gone |= store.make_anew()?;
        }
        if gone {
            tracing::error!(
                "the folder of the claims' checkpoints was removed; they are made anew from the API and the CDI files"
            );
            self.recover(cx)?;
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

    /// Tells the ChannelAllocator what the claims hold, unless that is not known of all: then it would leave channels
    /// whose containers may run.
    pub(super) fn restore(&mut self, cx: &mut Cx<'_, Self>) -> Result<(), Fault> {
        let mut claims: Vec<Prepared> = self.context.granted.borrow().values().cloned().collect();
        for driver in self.settings.drivers() {
            claims.extend(self.load(driver)?.iter().filter_map(Checkpoint::held));
        }
        if !self.lost.is_empty() {
            self.seek_lost(cx);
            return Ok(());
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
