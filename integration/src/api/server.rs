//! The server as its users hold it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ::http::{HeaderValue, header};
use jiff::Timestamp;
use kube::core::Status;
use serde_json::{Value, json};

use super::history::History;
use super::http;
use super::request::Request;
use super::status::{self, Outcome};
use super::store::Store;
use super::user::User;
use super::write::WriteOptions;

/// How a server is made.
pub struct Options {
    /// Changes that are remembered: who watches from an earlier version gets 410 Gone.
    pub history: usize,
    /// Where the server's timestamps come from.
    pub clock: Box<dyn Fn() -> Timestamp + Send + Sync>,
    /// Makes UIDs and generated names the same in every run.
    pub seed: Option<u64>,
    /// The release of Kubernetes that it plays, `1.<minor>`, as far as the releases differ in what they keep.
    pub minor: u32,
}

impl Default for Options {
    fn default() -> Self {
        Self { history: 16_384, clock: Box::new(Timestamp::now), seed: None, minor: 36 }
    }
}

type Fault = Arc<dyn Fn(&Request) -> Option<Status> + Send + Sync>;

struct Shared {
    store: Mutex<Store>,
    fault: Mutex<Option<Fault>>,
    tokens: Mutex<BTreeMap<String, User>>,
}

/// An API server. Clones are the same server.
#[derive(Clone)]
pub struct ApiServer {
    shared: Arc<Shared>,
}

impl ApiServer {
    /// An empty server, with the namespaces that every cluster has.
    pub fn new(options: Options) -> Self {
        let mut store = Store::new(options);
        if let Some(namespaces) = store.catalog.find("", "v1", "namespaces") {
            for name in ["default", "kube-node-lease", "kube-public", "kube-system"] {
                let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
                if let Err(status) = store.create(&namespaces, None, namespace, &WriteOptions::default()) {
                    tracing::error!(name, why = status.message, "a namespace of the cluster could not be made");
                }
            }
        }
        Self {
            shared: Arc::new(Shared { store: Mutex::new(store), fault: Mutex::new(None), tokens: Mutex::default() }),
        }
    }

    /// A client in this process, without sockets. Must be called within a tokio runtime.
    pub fn client(&self) -> kube::Client {
        self.client_as("in-process")
    }

    /// A [`Self::client`] of this `User-Agent`, by which [`Self::fail_requests`] can tell who asks.
    pub fn client_as(&self, user_agent: &'static str) -> kube::Client {
        let server = self.clone();
        let service = tower::service_fn(move |mut request: ::http::Request<kube::client::Body>| {
            let agent = HeaderValue::from_static(user_agent);
            request.headers_mut().entry(header::USER_AGENT).or_insert(agent);
            let answer = http::answer(server.clone(), request);
            async move { Ok::<_, std::convert::Infallible>(answer.await) }
        });
        kube::Client::new(service, "default")
    }

    /// A [`Self::client`] of this user.
    pub fn client_of(&self, user: User) -> kube::Client {
        let server = self.clone();
        let service = tower::service_fn(move |mut request: ::http::Request<kube::client::Body>| {
            request.extensions_mut().insert(user.clone());
            let answer = http::answer(server.clone(), request);
            async move { Ok::<_, std::convert::Infallible>(answer.await) }
        });
        kube::Client::new(service, "default")
    }

    /// A bearer token by which the server knows this user.
    pub fn token(&self, user: User) -> String {
        let token = format!("token-{:032x}", fastrand::u128(..));
        self.shared.tokens.lock().unwrap_or_else(PoisonError::into_inner).insert(token.clone(), user);
        token
    }

    /// Who shows this `Authorization`.
    pub(super) fn who(&self, authorization: &str) -> Outcome<User> {
        if authorization.is_empty() {
            return Ok(User::default());
        }
        let tokens = self.shared.tokens.lock().unwrap_or_else(PoisonError::into_inner);
        let user = authorization.strip_prefix("Bearer ").and_then(|token| tokens.get(token));
        user.cloned().ok_or_else(|| status::failure(401, "Unauthorized", "Unauthorized"))
    }

    /// Every change from the beginning of the remembered history on.
    pub fn history(&self) -> History {
        History::new(self.clone())
    }

    /// Tells of each write, by its resourceVersion.
    pub fn changes(&self) -> tokio::sync::watch::Receiver<u64> {
        self.store().newest()
    }

    /// The resourceVersion of the last write.
    pub fn resource_version(&self) -> u64 {
        self.store().version()
    }

    /// Lets requests fail: those for which `predicate` gives a `Status` are answered with it.
    pub fn fail_requests(&self, predicate: impl Fn(&Request) -> Option<Status> + Send + Sync + 'static) {
        *self.shared.fault.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(predicate));
    }

    /// Ends [`Self::fail_requests`].
    pub fn heal(&self) {
        *self.shared.fault.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Forgets the history: watches from an earlier version get 410 Gone.
    pub fn compact(&self) {
        self.store().compact();
    }

    /// Ends every watch, as a restart of the server would.
    pub fn disconnect(&self) {
        self.store().disconnect();
    }

    pub(super) fn store(&self) -> MutexGuard<'_, Store> {
        // A panic in one request leaves the store as the last finished write left it.
        self.shared.store.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn fault(&self, request: &Request) -> Outcome<()> {
        let fault = self.shared.fault.lock().unwrap_or_else(PoisonError::into_inner).clone();
        match fault.and_then(|fault| fault(request)) {
            Some(status) => Err(status.boxed()),
            None => Ok(()),
        }
    }

    /// The objects of a collection, for checks from outside.
    pub fn objects(&self, group: &str, plural: &str) -> Vec<Value> {
        let id = super::GroupResource::new(group, plural);
        let page = self.store().list(&id, &super::selector::Filter::default(), None, 0);
        page.items.iter().map(|object| object.value.clone()).collect()
    }
}
