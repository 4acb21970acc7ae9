//! What the Helm chart renders, tried on the embedded API server and compared with what the book says.

mod alerts;
mod imexdomains;
mod in_use;
mod objects;
mod policies;
mod rights;
mod values;

use std::collections::BTreeMap;

use heddle_core::api::crds;
use heddle_integration::api::{ApiServer, Options, User};
use heddle_integration::chart;
use kube::api::{Api, ApiResource, DynamicObject, PostParams};
use kube::core::{GroupVersionKind, Status, TypeMeta};
use kube::{Client, Error};
use serde_json::{Value, json};

const NODE: &str = "n1";

/// An API server with the chart's policies.
struct Bed {
    server: ApiServer,
}

impl Bed {
    async fn new() -> Self {
        let bed = Self { server: ApiServer::new(Options { seed: Some(1), ..Options::default() }) };
        for crd in crds() {
            bed.admin().create(serde_json::to_value(&crd).unwrap()).await.unwrap();
        }
        let kinds = ["ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"];
        for object in chart::objects().unwrap().into_iter().filter(|object| chart::is_one_of(object, &kinds)) {
            bed.admin().create(object).await.unwrap();
        }
        bed
    }

    fn admin(&self) -> Writer {
        Writer(self.server.client())
    }

    /// With the token of the agent of a node, or one that is bound to none.
    fn agent(&self, node: Option<&str>) -> Writer {
        Writer(self.server.client_of(User::service_account("heddle", "heddle-agent", node)))
    }
}

/// Somebody who writes objects of any kind.
struct Writer(Client);

impl Writer {
    fn api(&self, object: &Value) -> Api<DynamicObject> {
        let text = |field: &str| object[field].as_str().unwrap().to_owned();
        let types = TypeMeta { api_version: text("apiVersion"), kind: text("kind") };
        let resource = ApiResource::from_gvk(&GroupVersionKind::try_from(&types).unwrap());
        match object["metadata"]["namespace"].as_str() {
            Some(namespace) => Api::namespaced_with(self.0.clone(), namespace, &resource),
            None => Api::all_with(self.0.clone(), &resource),
        }
    }

    async fn create(&self, object: Value) -> Result<Value, String> {
        said(self.api(&object).create(&PostParams::default(), &read(object)).await)
    }

    async fn replace(&self, object: Value) -> Result<Value, String> {
        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
        said(self.api(&object).replace(&name, &PostParams::default(), &read(object)).await)
    }

    async fn replace_status(&self, object: Value) -> Result<Value, String> {
        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
        said(self.api(&object).replace_status(&name, &PostParams::default(), &read(object)).await)
    }

    async fn delete(&self, object: &Value) -> Result<(), String> {
        let deleted = self.api(object).delete(object["metadata"]["name"].as_str().unwrap(), &Default::default()).await;
        deleted.map(drop).map_err(told)
    }
}

fn read(object: Value) -> DynamicObject {
    serde_json::from_value(object).unwrap()
}

fn said(answer: kube::Result<DynamicObject>) -> Result<Value, String> {
    answer.map(|object| serde_json::to_value(object).unwrap()).map_err(told)
}

fn told(error: Error) -> String {
    match error {
        Error::Api(status) => {
            let Status { code, message, .. } = *status;
            assert_eq!(code, 422, "{message}");
            message
        }
        other => panic!("{other}"),
    }
}

/// With some of its fields others; null takes one away.
fn with(mut object: Value, patch: Value) -> Value {
    merge(&mut object, patch);
    object
}

fn merge(object: &mut Value, patch: Value) {
    match (object, patch) {
        (Value::Object(object), Value::Object(patch)) => {
            for (key, value) in patch {
                if value.is_null() {
                    object.remove(&key);
                } else {
                    merge(object.entry(key).or_insert(json!({})), value);
                }
            }
        }
        (object, patch) => *object = patch,
    }
}

/// The chart's objects by kind and name.
fn rendered() -> BTreeMap<(String, String), Value> {
    let key = |object: &Value| {
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        (text(&object["kind"]), text(&object["metadata"]["name"]))
    };
    chart::objects().unwrap().into_iter().map(|object| (key(&object), object)).collect()
}
