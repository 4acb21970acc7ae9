//! Known failures aicr 2546, 2547, 2715: another driver's CRD of our name takes the place of ours, and back.

use heddle_actors::crds::{self, Applied, Foreign};
use heddle_core::api::IsolationMode::{self, Channel, Domain};
use heddle_core::api::{self, ComputeDomain};
use heddle_core::controller::{DEGRADED, ISOLATED, READY};
use heddle_core::names;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::ApiResource;
use kube::{Client, ResourceExt};
use serde_json::{Value, json};

use crate::cluster::{Cluster, exclusive, home, test};

const CD: &str = names::COMPUTE_DOMAIN_CRD;

fn api(client: &Client) -> Api<CustomResourceDefinition> {
    Api::all(client.clone())
}

fn foreign() -> CustomResourceDefinition {
    serde_json::from_str(include_str!("../../../core/tests/samples/crd/foreign.json")).unwrap()
}

/// Another installer applies what it has, with force, as they do.
async fn overwrite(client: &Client, crd: &CustomResourceDefinition) {
    let params = PatchParams::apply("gpu-operator").force();
    api(client).patch(&crd.name_any(), &params, &Patch::Apply(crd)).await.unwrap();
}

fn dynamic(cluster: &Cluster) -> Api<DynamicObject> {
    Api::namespaced_with(cluster.client.clone(), "team", &ApiResource::erase::<ComputeDomain>(&()))
}

/// What the API serves of a ComputeDomain, with no wish about its fields.
async fn read(cluster: &Cluster, name: &str) -> Value {
    dynamic(cluster).get(name).await.unwrap().data
}

/// As `kubectl apply` makes it: with its manifest beside it.
async fn kubectl_apply(cluster: &Cluster, name: &str, isolation: Option<&str>) {
    let mut manifest = json!({
        "apiVersion": names::COMPUTE_DOMAIN_API_VERSION, "kind": "ComputeDomain",
        "metadata": {"name": name, "namespace": "team"},
        "spec": {"numNodes": 0, "channel": {"resourceClaimTemplate": {"name": format!("{name}-channel")}}},
    });
    if let Some(mode) = isolation {
        manifest["spec"]["isolationMode"] = mode.into();
    }
    let text = manifest.to_string();
    manifest["metadata"]["annotations"] = json!({names::LAST_APPLIED_ANNOTATION: text});
    let object: DynamicObject = serde_json::from_value(manifest).unwrap();
    dynamic(cluster).create(&PostParams::default(), &object).await.unwrap();
}

async fn event(cluster: &Cluster, reason: &str, about: &str) -> String {
    let seen = || async {
        let events = cluster.events(reason).await;
        let of = |event: &&k8s_openapi::api::events::v1::Event| {
            event.regarding.as_ref().and_then(|regarding| regarding.name.as_deref()) == Some(about)
        };
        events.iter().find(of).and_then(|event| event.note.clone())
    };
    cluster.until(&format!("an Event {reason} about {about}"), seen).await
}

async fn template(cluster: &Cluster, name: &str) -> Option<String> {
    cluster.templates().get_opt(name).await.unwrap().and_then(|template| template.uid())
}

async fn served_alone(cluster: &Cluster, name: &str, node: &str, mode: IsolationMode) -> String {
    let cd = cluster.create(name, mode).await;
    cluster.place(&cd, mode, node).await;
    cluster.prepared(&cd, node).await;
    cluster.condition(name, READY, "True", "NodesReady").await;
    cd.uid
}

#[test]
fn while_another_s_is_served_what_runs_goes_on_and_nothing_new_begins() {
    test(3, async |cluster: &mut Cluster| {
        let red = served_alone(cluster, "red", "n0", Domain).await;
        let red_template = template(cluster, "red-channel").await;
        overwrite(&cluster.client, &foreign()).await;
        assert!(read(cluster, "red").await["spec"].get("isolationMode").is_none(), "the API really drops it");

        // One that asks to be exclusive, made by a client that keeps no manifest; and two made by kubectl.
        cluster.create("blue", Domain).await;
        kubectl_apply(cluster, "pale", None).await;
        kubectl_apply(cluster, "dark", Some("Domain")).await;
        let told = event(cluster, "FieldsDropped", "blue").await;
        assert!(told.contains("delete it and create it anew"), "{told}");
        event(cluster, "FieldsDropped", "dark").await;
        let told = event(cluster, "CRDOutdated", "pale").await;
        assert!(told.contains("it was written by gpu-operator"), "{told}");
        assert!(
            told.contains("spec.isolationMode is missing") && told.contains("`heddle crds apply --take-over`"),
            "{told}"
        );

        // The exclusive one goes on, also on a further node; and also under a controller that has read it no other way.
        let cd = api::ComputeDomainRef { namespace: "team".into(), name: "red".into(), uid: red.clone() };
        cluster.kill_controller();
        cluster.start_controller();
        cluster.place(&cd, Domain, "n1").await;
        assert_eq!(cluster.prepared(&cd, "n1").await.0, exclusive(&red));
        cluster.until_quiet().await;
        assert_eq!(template(cluster, "red-channel").await, red_template);
        for name in ["blue-channel", "pale-channel", "dark-channel"] {
            assert_eq!(template(cluster, name).await, None, "{name}");
        }
        assert_eq!(cluster.nodes().get("n2").await.unwrap().spec.domain, Some(home()));

        // Ours again: by itself all is as it was, but for those of which nobody knows what they asked for.
        let applied = crds::apply(&cluster.client, Foreign::TakeOver).await.unwrap();
        assert_eq!(applied[0], (CD.into(), Applied::TakenOver(vec!["gpu-operator".into()])));
        cluster.condition("pale", READY, "True", "NoPods").await;
        cluster.condition("red", ISOLATED, "True", "ByDomain").await;
        cluster.condition("blue", READY, "False", "FieldsDropped").await;
        cluster.condition("dark", READY, "False", "FieldsDropped").await;
        assert_eq!(read(cluster, "red").await["spec"]["isolationMode"], "Domain", "nobody has written it meanwhile");
        assert_eq!(template(cluster, "red-channel").await, red_template);
        cluster.delete("blue").await;
        cluster.gone("blue").await;
        cluster.create("blue", Domain).await;
        cluster.condition("blue", READY, "True", "NoPods").await;
        // Its owner says that it asked for nothing: but this one's manifest says otherwise, so only a new one helps.
        let none = json!({"metadata": {"annotations": {names::DOUBT_ANNOTATION: null}}});
        cluster.cds().patch("dark", &PatchParams::default(), &Patch::Merge(none)).await.unwrap();
        cluster.until_quiet().await;
        cluster.condition("dark", READY, "False", "FieldsDropped").await;
    });
}

#[test]
fn a_mode_that_was_written_away_is_kept_by_its_template() {
    test(2, async |cluster: &mut Cluster| {
        let red = served_alone(cluster, "red", "n0", Domain).await;
        let red_template = template(cluster, "red-channel").await;
        overwrite(&cluster.client, &foreign()).await;
        let label = Patch::Merge(json!({"metadata": {"labels": {"a": "b"}}}));
        cluster.cds().patch("red", &PatchParams::default(), &label).await.unwrap();
        crds::apply(&cluster.client, Foreign::TakeOver).await.unwrap();
        assert_eq!(read(cluster, "red").await["spec"]["isolationMode"], "Channel", "it is lost");
        cluster.kill_controller();
        cluster.start_controller();
        let told = cluster.condition("red", DEGRADED, "True", "FieldsDropped").await;
        assert!(told.contains("it goes on as Domain"), "{told}");
        cluster.until_quiet().await;
        assert_eq!(template(cluster, "red-channel").await, red_template);
        let cd = api::ComputeDomainRef { namespace: "team".into(), name: "red".into(), uid: red.clone() };
        cluster.place(&cd, Domain, "n1").await;
        assert_eq!(cluster.prepared(&cd, "n1").await.0, exclusive(&red));
    });
}

#[test]
fn an_older_crd_of_ours_holds_up_only_what_is_new() {
    test(2, async |cluster: &mut Cluster| {
        let green = served_alone(cluster, "green", "n0", Channel).await;
        let mut older = serde_json::to_value(api::crds().remove(1)).unwrap();
        let status = &mut older["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"];
        status["properties"].as_object_mut().unwrap().remove("lastChannel");
        overwrite(&cluster.client, &serde_json::from_value(older).unwrap()).await;
        cluster.create("blue", Channel).await;
        let told = cluster.condition("blue", READY, "False", "CRDOutdated").await;
        assert!(
            told.contains("imexdomains.imex.heddle.dev") && told.contains("status.lastChannel is missing"),
            "{told}"
        );
        let cd = api::ComputeDomainRef { namespace: "team".into(), name: "green".into(), uid: green.clone() };
        cluster.place(&cd, Channel, "n1").await;
        cluster.prepared(&cd, "n1").await;
        cluster.end(&cd, "n0").await;
        cluster.end(&cd, "n1").await;
        cluster.delete("green").await;
        cluster.gone("green").await;
        cluster.freed(&home(), &green).await;
        let quiet = cluster.until_quiet().await;
        crds::apply(&cluster.client, Foreign::TakeOver).await.unwrap();
        cluster.condition("blue", READY, "True", "NoPods").await;
        assert!(cluster.server.resource_version() > quiet);
    });
}

#[test]
fn a_crd_that_cannot_be_read_holds_up_only_what_is_new() {
    test(1, async |cluster: &mut Cluster| {
        cluster.create("green", Channel).await;
        cluster.condition("green", READY, "True", "NoPods").await;
        cluster.kill_controller();
        cluster.server.fail_requests(|request| {
            let denied = request.plural == "customresourcedefinitions";
            denied.then(|| {
                kube::core::Status::failure("customresourcedefinitions is forbidden", "Forbidden").with_code(403)
            })
        });
        cluster.create("blue", Channel).await;
        cluster.start_controller();
        let told = cluster.condition("blue", READY, "False", "CRDOutdated").await;
        assert!(told.contains("forbidden"), "{told}");
        cluster.delete("green").await;
        cluster.gone("green").await;
        cluster.server.heal();
        cluster.condition("blue", READY, "True", "NoPods").await;
    });
}

#[test]
fn a_compute_domain_of_a_schema_without_anything_breaks_nothing() {
    test(1, async |cluster: &mut Cluster| {
        let mut loose = serde_json::to_value(foreign()).unwrap();
        let schema = &mut loose["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        *schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
        overwrite(&cluster.client, &serde_json::from_value(loose).unwrap()).await;
        let api = dynamic(cluster);
        for (name, spec) in [("bare", Value::Null), ("odd", json!({"channel": 7}))] {
            let mut object = json!({
                "apiVersion": names::COMPUTE_DOMAIN_API_VERSION, "kind": "ComputeDomain", "metadata": {"name": name},
            });
            if !spec.is_null() {
                object["spec"] = spec;
            }
            api.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap();
            event(cluster, "InvalidSpec", name).await;
            let garbage = Patch::Merge(json!({"status": {"conditions": "none", "nodes": 7}}));
            api.patch_status(name, &PatchParams::default(), &garbage).await.unwrap();
            let mended =
                || async { api.get(name).await.unwrap().data["status"]["conditions"].is_array().then_some(()) };
            cluster.until("its status is written anew", mended).await;
            api.delete(name, &DeleteParams::default()).await.unwrap();
        }
        // Nothing of ours is required of it, and nothing new is served by it.
        crds::apply(&cluster.client, Foreign::Force).await.unwrap();
        cluster.create("green", Channel).await;
        cluster.condition("green", READY, "True", "NoPods").await;
    });
}

#[test]
fn they_are_applied_taken_over_and_refused() {
    test(0, async |cluster: &mut Cluster| {
        let client = &cluster.client;
        let all = |applied: Vec<(String, Applied)>| applied.into_iter().map(|(_, how)| how).collect::<Vec<_>>();
        let first = all(crds::apply(client, Foreign::Refuse).await.unwrap());
        assert!(!first.contains(&Applied::Created), "the test had made them: {first:?}");
        assert_eq!(
            all(crds::apply(client, Foreign::Refuse).await.unwrap()),
            [Applied::Unchanged, Applied::Unchanged, Applied::Unchanged]
        );
        assert!(crds::check(client).await.unwrap().iter().all(|(_, misfit)| misfit.is_none()));

        // A newer one has a field that objects would lose.
        let mut newer = serde_json::to_value(api::crds().remove(0)).unwrap();
        let spec = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties";
        newer.pointer_mut(spec).unwrap()["fabric"] = json!({"type": "string"});
        overwrite(client, &serde_json::from_value(newer).unwrap()).await;
        let refused = crds::apply(client, Foreign::TakeOver).await.unwrap_err();
        for part in ["written by gpu-operator", "spec.fabric is missing", "--force"] {
            assert!(refused.message.contains(part), "{refused}");
        }
        let check = crds::check(client).await.unwrap();
        assert_eq!(check[0].1, None, "more is no harm");
        let forced = all(crds::apply(client, Foreign::Force).await.unwrap());
        assert_eq!(forced[0], Applied::TakenOver(vec!["gpu-operator".into()]));

        // A version in which objects are stored is kept, whoever asks.
        let mut both = foreign();
        both.spec.versions[0].storage = false;
        let mut stored = both.spec.versions[0].clone();
        (stored.name, stored.storage) = ("v1".into(), true);
        both.spec.versions.push(stored);
        overwrite(client, &both).await;
        let refused = crds::apply(client, Foreign::Refuse).await.unwrap_err();
        for part in ["applied by gpu-operator", "--take-over", "leave it alone"] {
            assert!(refused.message.contains(part), "{refused}");
        }
        crds::apply(client, Foreign::TakeOver).await.unwrap();
        let served = api(client).get(CD).await.unwrap();
        let versions: Vec<_> = served.spec.versions.iter().map(|v| (v.name.as_str(), v.served, v.storage)).collect();
        assert_eq!(versions, [("v1beta1", true, true), ("v1", true, false)]);
        assert!(crds::check(client).await.unwrap().iter().all(|(_, misfit)| misfit.is_none()));
    });
}
