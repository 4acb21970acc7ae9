//! The pods of this node: one worker each, for as long as there is something to do for it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api,
    runtime::{WatchStreamExt, watcher},
};
use tokio::{
    sync::{mpsc, watch},
    time::{self, MissedTickBehavior},
};
use tracing::{debug, warn};

use super::{
    life::Life,
    pod_worker::{self, Seen},
    prepare::unprepare,
};

/// Follows the node's pods for ever.
pub async fn run(life: Life) {
    let options = &life.machine.options;
    let api: Api<Pod> = Api::all(options.client.clone());
    let config = watcher::Config::default().fields(&format!("spec.nodeName={}", options.node_name));
    let mut events = watcher(api, config).default_backoff().boxed();
    let mut reconcile = time::interval(options.limits.claim_reconcile);
    reconcile.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (ended, mut endings) = mpsc::unbounded_channel();
    let mut pods = Pods { life: life.clone(), known: BTreeMap::new(), working: BTreeSet::new(), ended, listed: None };
    let mut synced = false;
    loop {
        tokio::select! {
            event = events.try_next() => match event {
                Ok(Some(event)) => synced |= pods.take(event),
                Ok(None) => return,
                Err(err) => debug!(node = options.node_name, %err, "watch of pods failed, it is opened again"),
            },
            Some(uid) = endings.recv() => { pods.working.remove(&uid); }
            // Before the first list it is not known which pods are gone.
            _ = reconcile.tick(), if synced => pods.reconcile().await,
        }
    }
}

struct Pods {
    life: Life,
    /// Pods that the API knows, by UID.
    known: BTreeMap<String, watch::Sender<Seen>>,
    /// Pods whose workers have not ended.
    working: BTreeSet<String>,
    ended: mpsc::UnboundedSender<String>,
    /// UIDs of a list that is coming in.
    listed: Option<BTreeSet<String>>,
}

impl Pods {
    /// Takes a change; true when a list is complete.
    fn take(&mut self, event: watcher::Event<Pod>) -> bool {
        match event {
            watcher::Event::Init => self.listed = Some(BTreeSet::new()),
            watcher::Event::InitApply(pod) => {
                let uid = pod.metadata.uid.clone().unwrap_or_default();
                self.listed.get_or_insert_default().insert(uid);
                self.apply(pod);
            }
            watcher::Event::InitDone => {
                self.complete();
                return true;
            }
            watcher::Event::Apply(pod) => self.apply(pod),
            watcher::Event::Delete(pod) => self.gone(pod.metadata.uid.as_deref().unwrap_or_default()),
        }
        false
    }

    fn apply(&mut self, pod: Pod) {
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        let seen = Seen { pod: Arc::new(pod), gone: false };
        match self.known.get(&uid) {
            Some(worker) => {
                worker.send_replace(seen);
            }
            None => self.start(uid, seen),
        }
    }

    fn gone(&mut self, uid: &str) {
        if let Some(worker) = self.known.remove(uid) {
            worker.send_modify(|seen| seen.gone = true);
        }
    }

    /// After a list: pods that are not in it are gone, those that only the runtime knows as well.
    fn complete(&mut self) {
        let listed = self.listed.take().unwrap_or_default();
        let vanished: Vec<_> = self.known.keys().filter(|uid| !listed.contains(*uid)).cloned().collect();
        for uid in vanished {
            self.gone(&uid);
        }
        for pod in self.life.machine.runtime.pods() {
            let uid = pod.metadata.uid.clone().unwrap_or_default();
            if !listed.contains(&uid) && !self.working.contains(&uid) {
                self.start(uid.clone(), Seen { pod, gone: true });
                self.known.remove(&uid);
            }
        }
    }

    fn start(&mut self, uid: String, seen: Seen) {
        let (sender, receiver) = watch::channel(seen);
        self.known.insert(uid.clone(), sender);
        self.working.insert(uid.clone());
        let (life, ended) = (self.life.clone(), self.ended.clone());
        self.life.spawner.spawn(async move {
            pod_worker::run(life, uid.clone(), receiver).await;
            let _ = ended.send(uid);
        });
    }

    /// Unprepares claims of pods that nobody works on: what an earlier life left behind.
    async fn reconcile(&self) {
        let holders = self.life.claims().pods();
        for uid in holders.into_iter().filter(|uid| !self.working.contains(uid) && !self.known.contains_key(uid)) {
            let life = self.life.clone();
            if let Err(err) = unprepare(&life, &uid).await {
                let node = &life.machine.options.node_name;
                warn!(node, pod_uid = uid, err, "could not unprepare claims of a pod that is gone, will retry");
            }
        }
    }
}
