//! Prepares and unprepares the claims of a pod.

use std::collections::BTreeMap;

use k8s_openapi::api::{core::v1::Pod, resource::v1::ResourceClaim};
use kube::Api;

use super::{
    claims::{self, Claims},
    life::Life,
    plugin::{Plugin, go_words},
    pod_claims,
};

/// Prepares all claims of the pod that are not prepared yet, in one call a driver. Nothing is remembered before all
/// claims were found, reserved for the pod, and served by a registered driver.
pub async fn prepare(life: &Life, pod: &Pod) -> Result<(), String> {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
    let api: Api<ResourceClaim> = Api::namespaced(life.machine.options.client.clone(), namespace);
    let mut claims = Vec::new();
    let mut plugins = BTreeMap::<String, Plugin>::new();
    for used in pod_claims::of(pod)? {
        let name = &used.name;
        let claim = api.get(name).await.map_err(|err| format!("fetch ResourceClaim {name}: {}", words(&err)))?;
        pod_claims::check(pod, &used, &claim)?;
        for driver in claims::drivers(&claim)? {
            // Also for a claim that is prepared already: without its driver something is wrong with the node.
            let plugin = life.plugins.get(&driver)?;
            plugins.insert(driver, plugin);
        }
        claims.push(claim);
    }
    let batches = life.claims().begin(uid, &claims)?;
    let limit = life.machine.options.limits.call;
    for (driver, asked) in &batches {
        let Some(plugin) = plugins.get(driver) else { return Err(format!("DRA driver {driver} is not registered")) };
        life.machine.counters.prepare_calls.one();
        life.machine.counters.prepare_claims.add(asked.len());
        let answer = plugin.prepare(asked.clone(), limit).await;
        let answer = answer.map_err(|status| format!("NodePrepareResources: {}", go_words(&status)))?;
        life.claims().answered(driver, asked, answer)?;
    }
    life.claims().prepared(&batches);
    Ok(())
}

/// Unprepares the claims whose last pod on this node this was. Needs nothing from the API.
pub async fn unprepare(life: &Life, pod_uid: &str) -> Result<(), String> {
    let batches = life.claims().leave(pod_uid);
    let result = call_unprepare(life, &batches).await;
    life.claims().left(pod_uid, result.is_ok());
    result
}

async fn call_unprepare(life: &Life, batches: &claims::Batches) -> Result<(), String> {
    let limit = life.machine.options.limits.call;
    for (driver, asked) in batches {
        let plugin = life.plugins.get(driver)?;
        life.machine.counters.unprepare_calls.one();
        life.machine.counters.unprepare_claims.add(asked.len());
        let answer = plugin.unprepare(asked.clone(), limit).await;
        let answer = answer.map_err(|status| format!("NodeUnprepareResources: {}", go_words(&status)))?;
        Claims::check_unprepared(asked, &answer)?;
    }
    Ok(())
}

/// The API's own message where there is one.
fn words(err: &kube::Error) -> String {
    match err {
        kube::Error::Api(status) => status.message.clone(),
        other => other.to_string(),
    }
}
