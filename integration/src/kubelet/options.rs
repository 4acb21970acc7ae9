//! What a kubelet double is started with, and how long it waits for things.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::node::NodePaths;

/// What a kubelet double is started with.
#[derive(Clone)]
pub struct KubeletOptions {
    /// How it reaches the API.
    pub client: kube::Client,
    /// Its Node's name.
    pub node_name: String,
    /// The node's files.
    pub paths: NodePaths,
    /// The node's `InternalIP`, and the address of pods on the host's network.
    pub node_address: String,
    /// Labels of its Node, on top of the kubelet's own.
    pub labels: BTreeMap<String, String>,
    /// How long it waits for things.
    pub limits: Limits,
}

impl KubeletOptions {
    /// Options with the real kubelet's limits.
    pub fn new(
        client: kube::Client,
        node_name: impl Into<String>,
        paths: NodePaths,
        node_address: impl Into<String>,
    ) -> Self {
        Self {
            client,
            node_name: node_name.into(),
            paths,
            node_address: node_address.into(),
            labels: BTreeMap::new(),
            limits: Limits::default(),
        }
    }

    /// The same with these labels on the Node.
    pub fn with_labels(self, labels: BTreeMap<String, String>) -> Self {
        Self { labels, ..self }
    }

    /// The same with other limits.
    pub fn with_limits(self, limits: Limits) -> Self {
        Self { limits, ..self }
    }
}

/// The kubelet's limits and periods. The default is what the real one has (sources: facts §5).
#[derive(Clone, Debug)]
pub struct Limits {
    /// For the connection to a registration socket.
    pub dial: Duration,
    /// For `GetInfo`.
    pub get_info: Duration,
    /// For `NotifyRegistrationStatus`.
    pub notify: Duration,
    /// Between two looks at which plugins should be registered.
    pub registry_reconcile: Duration,
    /// Before a failed registration is tried again: at first, and at most.
    pub register_retry: (Duration, Duration),
    /// Before a lost or refused plugin connection is dialled again: at first, and at most.
    pub reconnect: (Duration, Duration),
    /// Before a request that the API did not take is made again: at first, and at most.
    pub api_retry: (Duration, Duration),
    /// For `NodePrepareResources` and `NodeUnprepareResources`.
    pub call: Duration,
    /// Before a pod that could not be synchronized is tried again, plus up to half of it.
    pub pod_retry: Duration,
    /// Between two looks for claims whose pods are gone.
    pub claim_reconcile: Duration,
    /// Before a crashed container is started again: at first, and at most.
    pub crash_backoff: (Duration, Duration),
    /// How long a driver may be without a connected plugin before its ResourceSlices are deleted.
    pub wipe_delay: Duration,
    /// Before a health stream that ended is opened again.
    pub health_retry: Duration,
    /// How old a device's health may be, if the plugin does not say.
    pub health_stale: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            dial: Duration::from_secs(10),
            get_info: Duration::from_secs(1),
            notify: Duration::from_secs(5),
            registry_reconcile: Duration::from_secs(1),
            register_retry: (Duration::from_millis(500), Duration::from_secs(122)),
            reconnect: (Duration::from_secs(1), Duration::from_secs(120)),
            api_retry: (Duration::from_secs(1), Duration::from_secs(300)),
            call: Duration::from_secs(45),
            pod_retry: Duration::from_secs(10),
            claim_reconcile: Duration::from_secs(60),
            crash_backoff: (Duration::from_secs(10), Duration::from_secs(300)),
            wipe_delay: Duration::from_secs(30),
            health_retry: Duration::from_secs(5),
            health_stale: Duration::from_secs(30),
        }
    }
}

impl Limits {
    /// The real limits for calls, but short pauses before something is tried again: for demos and tests, where
    /// the order of things matters and the waiting does not.
    pub fn brisk() -> Self {
        Self {
            register_retry: (Duration::from_millis(50), Duration::from_secs(1)),
            reconnect: (Duration::from_millis(50), Duration::from_secs(1)),
            api_retry: (Duration::from_millis(50), Duration::from_secs(5)),
            pod_retry: Duration::from_millis(200),
            claim_reconcile: Duration::from_secs(1),
            crash_backoff: (Duration::from_millis(200), Duration::from_secs(5)),
            health_retry: Duration::from_millis(200),
            ..Self::default()
        }
    }
}
