//! A plugin double: answers as it is told, writes CDI files, and remembers what it was asked.

use std::{
    collections::{BTreeMap, BTreeSet},
    os::unix::net::UnixListener as StdListener,
    path::PathBuf,
    pin::Pin,
    sync::{Arc, Mutex},
    thread::JoinHandle,
    time::Duration,
};

use futures::Stream;
use heddle_actors::dra::front;
use heddle_integration::node::NodePaths;
use heddle_proto::{
    dra::v1::{self as dra, dra_plugin_server},
    health::v1::{self as health, dra_resource_health_server},
    registration::{self as reg, registration_server},
};
use tokio::{
    net::UnixListener,
    sync::{oneshot, watch},
};
use tokio_stream::wrappers::{UnixListenerStream, WatchStream};
use tonic::{Request, Response, Status, transport::Server};

/// The double's driver.
pub const DRIVER: &str = "threads.example.com";

/// What it was asked and how it is to answer.
pub struct Script {
    /// Claims of each Prepare call.
    pub prepares: Vec<Vec<String>>,
    /// Claims of each Unprepare call.
    pub unprepares: Vec<Vec<String>>,
    /// What it was told of its registration.
    pub notices: Vec<(bool, String)>,
    /// `GetInfo` is answered only after this many calls.
    pub deaf: usize,
    /// Error of the next Prepares, by claim name.
    pub errors: BTreeMap<String, String>,
    /// Claims left out of the answer.
    pub skip: BTreeSet<String>,
    /// An entry that nobody asked for.
    pub surplus: Option<String>,
    /// Unprepare fails.
    pub keep: bool,
    /// Prepare does not answer.
    pub hang: bool,
    /// No CDI file is written.
    pub no_cdi: bool,
    /// Type it says to be.
    pub kind: String,
    /// Services it says to have.
    pub services: Vec<String>,
    /// Socket it says to serve at, if not its own.
    pub endpoint: Option<PathBuf>,
    /// Notices that it answers with an error.
    pub rude: usize,
    /// Request that its devices name.
    pub request_names: Vec<String>,
}

impl Default for Script {
    fn default() -> Self {
        Self {
            prepares: Vec::new(),
            unprepares: Vec::new(),
            notices: Vec::new(),
            deaf: 0,
            errors: BTreeMap::new(),
            skip: BTreeSet::new(),
            surplus: None,
            keep: false,
            hang: false,
            no_cdi: false,
            kind: "DRAPlugin".into(),
            services: heddle_proto::SUPPORTED_VERSIONS.iter().map(|service| (*service).to_owned()).collect(),
            endpoint: None,
            rude: 0,
            request_names: Vec::new(),
        }
    }
}

/// A running plugin double.
pub struct Plugin {
    pub double: Double,
    pub reg: PathBuf,
    pub socket: PathBuf,
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Clone)]
pub struct Double {
    script: Arc<Mutex<Script>>,
    changed: watch::Sender<u64>,
    health: watch::Sender<health::NodeWatchResourcesResponse>,
    endpoint: PathBuf,
    cdi: PathBuf,
}

impl Plugin {
    /// Starts an instance; `name` tells it from others of the driver.
    pub fn start(paths: &NodePaths, name: &str) -> Self {
        Self::with(paths, name, Script::default())
    }

    pub fn with(paths: &NodePaths, name: &str, script: Script) -> Self {
        let (reg, socket) =
            (paths.registry().join(format!("{name}-reg.sock")), paths.plugins().join(format!("{name}.sock")));
        for path in [&reg, &socket] {
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            let _ = std::fs::remove_file(path);
        }
        std::fs::create_dir_all(paths.cdi()).unwrap();
        let double = Double {
            script: Arc::new(Mutex::new(script)),
            changed: watch::Sender::new(0),
            health: watch::Sender::new(health::NodeWatchResourcesResponse::default()),
            endpoint: socket.clone(),
            cdi: paths.cdi(),
        };
        let bind = |path| {
            let listener = std::os::unix::net::UnixListener::bind(path).unwrap();
            listener.set_nonblocking(true).unwrap();
            listener
        };
        let (service, registration) = (bind(&socket), bind(&reg));
        let (end, ended) = oneshot::channel::<()>();
        let serve = serve(double.clone(), service, registration);
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                tokio::select! {
                    () = serve => {}
                    _ = ended => {}
                }
            });
        });
        Self { double, reg, socket, end: Some(end), thread: Some(thread) }
    }

    /// Ends it and all its connections as `kill -9` would; tidily if its sockets are to be removed before.
    pub fn stop(mut self, tidy: bool) {
        if tidy {
            let _ = std::fs::remove_file(&self.reg);
            let _ = std::fs::remove_file(&self.socket);
        }
        self.end();
    }

    fn end(&mut self) {
        self.end.take();
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

/// Both servers, in a runtime of their own, so that no connection outlives them.
async fn serve(double: Double, service: StdListener, registration: StdListener) {
    let listener = UnixListenerStream::new(UnixListener::from_std(service).unwrap());
    let serving = Server::builder()
        .add_service(dra_plugin_server::DraPluginServer::new(double.clone()))
        .add_service(dra_resource_health_server::DraResourceHealthServer::new(double.clone()))
        .serve_with_incoming(listener);
    let registration = front::incoming(UnixListener::from_std(registration).unwrap());
    let registering = Server::builder()
        .add_service(registration_server::RegistrationServer::new(double))
        .serve_with_incoming(registration);
    let (one, other) = tokio::join!(serving, registering);
    one.and(other).unwrap();
}

impl Drop for Plugin {
    fn drop(&mut self) {
        self.end();
    }
}

impl Double {
    /// Changes how it answers.
    pub fn set(&self, change: impl FnOnce(&mut Script)) {
        change(&mut self.script.lock().unwrap());
        self.changed.send_modify(|version| *version += 1);
    }

    pub fn get<T>(&self, look: impl FnOnce(&Script) -> T) -> T {
        look(&self.script.lock().unwrap())
    }

    /// Waits until what it was asked is so.
    pub async fn until(&self, mut holds: impl FnMut(&Script) -> bool) {
        let mut changed = self.changed.subscribe();
        while !self.get(&mut holds) {
            changed.changed().await.unwrap();
        }
    }

    /// Reports a device's health.
    pub fn report(&self, device: &str, status: health::HealthStatus) {
        let id = health::DeviceIdentifier { pool_name: "n1".into(), device_name: device.into() };
        let report = health::DeviceHealth { device: Some(id), health: status.into(), ..Default::default() };
        self.health.send_replace(health::NodeWatchResourcesResponse { devices: vec![report] });
    }

    fn write_cdi(&self, uid: &str) {
        let minor = self.get(|script| script.prepares.len());
        let spec = format!(
            r#"{{"cdiVersion":"0.5.0","kind":"{DRIVER}/claim","devices":[{{"name":"{uid}","containerEdits":{{
            "env":["CLAIM={uid}"],"deviceNodes":[{{"path":"/dev/nvidia-caps-imex-channels/channel{minor}",
            "type":"c","major":505,"minor":{minor}}}]}}}}]}}"#
        );
        std::fs::write(self.cdi.join(format!("{uid}.json")), spec).unwrap();
    }
}

#[tonic::async_trait]
impl registration_server::Registration for Double {
    async fn get_info(&self, _: Request<reg::InfoRequest>) -> Result<Response<reg::PluginInfo>, Status> {
        let deaf = self.get(|script| script.deaf);
        if deaf > 0 {
            self.set(|script| script.deaf -= 1);
            std::future::pending::<()>().await;
        }
        Ok(Response::new(self.get(|script| reg::PluginInfo {
            r#type: script.kind.clone(),
            name: DRIVER.into(),
            endpoint: script.endpoint.as_ref().unwrap_or(&self.endpoint).to_string_lossy().into_owned(),
            supported_versions: script.services.clone(),
        })))
    }

    async fn notify_registration_status(
        &self,
        request: Request<reg::RegistrationStatus>,
    ) -> Result<Response<reg::RegistrationStatusResponse>, Status> {
        let status = request.into_inner();
        if self.get(|script| script.rude > 0) {
            self.set(|script| script.rude -= 1);
            return Err(Status::internal("not now"));
        }
        self.set(|script| script.notices.push((status.plugin_registered, status.error)));
        Ok(Response::new(reg::RegistrationStatusResponse {}))
    }
}

#[tonic::async_trait]
impl dra_plugin_server::DraPlugin for Double {
    async fn node_prepare_resources(
        &self,
        request: Request<dra::NodePrepareResourcesRequest>,
    ) -> Result<Response<dra::NodePrepareResourcesResponse>, Status> {
        let asked = request.into_inner().claims;
        self.set(|script| script.prepares.push(asked.iter().map(|claim| claim.name.clone()).collect()));
        if self.get(|script| script.hang) {
            tokio::time::sleep(Duration::from_secs(3600)).await;
        }
        let mut answer = dra::NodePrepareResourcesResponse::default();
        for claim in asked {
            let mut response = dra::NodePrepareResourceResponse::default();
            if let Some(error) = self.get(|script| script.errors.get(&claim.name).cloned()) {
                response.error = error;
            } else {
                if !self.get(|script| script.no_cdi) {
                    self.write_cdi(&claim.uid);
                }
                response.devices.push(dra::Device {
                    request_names: self.get(|script| script.request_names.clone()),
                    pool_name: "n1".into(),
                    device_name: "slot-0".into(),
                    cdi_device_ids: vec![format!("{DRIVER}/claim={}", claim.uid)],
                    share_id: None,
                });
            }
            if !self.get(|script| script.skip.contains(&claim.name)) {
                answer.claims.insert(claim.uid, response);
            }
        }
        if let Some(surplus) = self.get(|script| script.surplus.clone()) {
            answer.claims.insert(surplus, dra::NodePrepareResourceResponse::default());
        }
        Ok(Response::new(answer))
    }

    async fn node_unprepare_resources(
        &self,
        request: Request<dra::NodeUnprepareResourcesRequest>,
    ) -> Result<Response<dra::NodeUnprepareResourcesResponse>, Status> {
        let asked = request.into_inner().claims;
        self.set(|script| script.unprepares.push(asked.iter().map(|claim| claim.name.clone()).collect()));
        let error = if self.get(|script| script.keep) { "busy".to_owned() } else { String::new() };
        let answer = |claim: dra::Claim| {
            let _ = std::fs::remove_file(self.cdi.join(format!("{}.json", claim.uid)));
            (claim.uid, dra::NodeUnprepareResourceResponse { error: error.clone() })
        };
        Ok(Response::new(dra::NodeUnprepareResourcesResponse { claims: asked.into_iter().map(answer).collect() }))
    }
}

#[tonic::async_trait]
impl dra_resource_health_server::DraResourceHealth for Double {
    type NodeWatchResourcesStream =
        Pin<Box<dyn Stream<Item = Result<health::NodeWatchResourcesResponse, Status>> + Send>>;

    async fn node_watch_resources(
        &self,
        _: Request<health::NodeWatchResourcesRequest>,
    ) -> Result<Response<Self::NodeWatchResourcesStream>, Status> {
        use futures::StreamExt;
        Ok(Response::new(Box::pin(WatchStream::new(self.health.subscribe()).map(Ok))))
    }
}
