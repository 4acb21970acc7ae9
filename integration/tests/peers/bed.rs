use std::future::Future;
use std::time::Duration;

use heddle_actors::controller::{self, Signer};
use heddle_actors::identity;
use heddle_core::api::{IMEXDomain, IMEXDomainSpec, IMEXNode, IMEXNodeSpec, Member, crds};
use heddle_core::identity::{Agents, SIGNER, request_name};
use heddle_integration::api::{ApiServer, Options, User};
use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::{
    CertificateSigningRequest, CertificateSigningRequestSpec, CertificateSigningRequestStatus,
};
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, ObjectMeta, PostParams};
use kube::runtime::wait::await_condition;
use kube::{Client, ResourceExt};
use serde_json::json;

pub const NAMESPACE: &str = "heddle";
pub const AGENT: &str = "heddle-agent";

/// An API with IMEX domains that nobody but the test changes, and the signer of a controller.
pub struct Bed {
    pub server: ApiServer,
    pub client: Client,
}

/// Runs a test on a System of its own, and no longer than it could ever need.
pub fn test(scene: impl AsyncFnOnce(&Bed)) {
    heddle_actors::runtime::block_on(async {
        let bed = Bed::new().await;
        within(scene(&bed)).await;
    });
}

pub async fn within<T>(scene: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(60), scene).await.expect("the test hangs")
}

impl Bed {
    async fn new() -> Self {
        let server = ApiServer::new(Options { seed: Some(1), ..Options::default() });
        let client = server.client();
        for crd in crds() {
            Api::<CustomResourceDefinition>::all(client.clone()).create(&PostParams::default(), &crd).await.unwrap();
        }
        let namespace: Namespace = serde_json::from_value(json!({"metadata": {"name": NAMESPACE}})).unwrap();
        Api::all(client.clone()).create(&PostParams::default(), &namespace).await.unwrap();
        Self { server, client }
    }

    /// A controller whose signer answers; dropping it is the end of both.
    pub fn controller(&self) -> Controller {
        let signer = Signer {
            namespace: NAMESPACE.into(),
            agents: Agents { namespace: NAMESPACE.into(), service_account: AGENT.into() },
            longest: 7 * 24 * 3600,
        };
        let settings = controller::Settings {
            client: self.client.clone(),
            requests: Default::default(),
            metrics: None,
            driver_match: Default::default(),
            signer: Some(signer),
            election: None,
        };
        let run = async move { controller::run(settings, std::future::pending()).await.unwrap() };
        Controller(tokio::task::spawn_local(run))
    }

    /// An IMEX domain with members, which the controller leaves alone: it is in no clique that any node reports.
    pub async fn domain(&self, name: &str, members: &[&str]) -> IMEXDomain {
        let members =
            members.iter().map(|node| (node.to_string(), Member { address: "10.0.0.1".into(), ..Default::default() }));
        let spec =
            IMEXDomainSpec { clique: "none".into(), max_members: 18, members: members.collect(), ..Default::default() };
        self.domains().create(&PostParams::default(), &IMEXDomain::new(name, spec)).await.unwrap()
    }

    pub async fn node(&self, name: &str, spec: IMEXNodeSpec) {
        let nodes = Api::<IMEXNode>::all(self.client.clone());
        nodes.create(&PostParams::default(), &IMEXNode::new(name, spec)).await.unwrap();
    }

    pub fn domains(&self) -> Api<IMEXDomain> {
        Api::all(self.client.clone())
    }

    /// A client with the token of a node's agent.
    pub fn agent(&self, node: &str) -> Client {
        self.server.client_of(User::service_account(NAMESPACE, AGENT, Some(node)))
    }

    /// Asks, and waits for the answer.
    pub async fn ask(&self, client: Client, csr: CertificateSigningRequest) -> CertificateSigningRequestStatus {
        let api = Api::<CertificateSigningRequest>::all(client);
        let made = api.create(&PostParams::default(), &csr).await.unwrap();
        self.answer(&made.name_any()).await
    }

    pub async fn answer(&self, name: &str) -> CertificateSigningRequestStatus {
        let answered = |csr: Option<&CertificateSigningRequest>| {
            let status = csr.and_then(|csr| csr.status.as_ref());
            status.is_some_and(|status| {
                let is = |type_: &str| status.conditions.iter().flatten().any(|condition| condition.type_ == type_);
                status.certificate.is_some() || is("Denied") || is("Failed")
            })
        };
        let api = Api::<CertificateSigningRequest>::all(self.client.clone());
        await_condition(api, name, answered).await.unwrap().unwrap().status.unwrap()
    }
}

pub struct Controller(tokio::task::JoinHandle<()>);

impl Drop for Controller {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// What the agent of a node makes.
pub fn asking(node: &str, domain: &str, key: &str) -> CertificateSigningRequest {
    asking_with(node, identity::request(domain, key).unwrap())
}

pub fn asking_with(node: &str, pem: String) -> CertificateSigningRequest {
    CertificateSigningRequest {
        metadata: ObjectMeta { name: Some(request_name(node, fastrand::u64(..))), ..Default::default() },
        spec: CertificateSigningRequestSpec {
            request: ByteString(pem.into_bytes()),
            signer_name: SIGNER.into(),
            usages: Some(heddle_core::identity::USAGES.map(String::from).into()),
            expiration_seconds: Some(3600),
            ..Default::default()
        },
        status: None,
    }
}

/// Type, reason and message of what was answered.
pub fn condition(status: &CertificateSigningRequestStatus) -> (String, String, String) {
    let [condition] = status.conditions.as_deref().unwrap_or_default() else { panic!("one condition: {status:?}") };
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    (condition.type_.clone(), text(&condition.reason), text(&condition.message))
}
