use std::collections::BTreeMap;

use heddle_core::api::IsolationMode::{self, Channel, Domain};
use heddle_core::controller::{CHANNEL_ASSIGNED, Cd, DEGRADED, ISOLATED, READY, wanted_template};
use heddle_core::fault::reason;
use heddle_core::names;
use heddle_integration::api::Verb;
use k8s_openapi::api::resource::v1::ResourceClaimTemplate;
use kube::ResourceExt;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::core::Status;
use serde_json::json;

use crate::cluster::{Cluster, home, test, test_alone};

async fn template(cluster: &Cluster, name: &str) -> ResourceClaimTemplate {
    cluster.until(name, || async { cluster.templates().get_opt(name).await.unwrap() }).await
}

#[test]
fn a_compute_domain_gets_its_template_and_a_status() {
    test(1, async |cluster: &mut Cluster| {
        for (name, mode, wanted) in [("green", Channel, "ExactCount"), ("red", Domain, "All")] {
            let cd = cluster.create(name, mode).await;
            let template = template(cluster, &format!("{name}-channel")).await;
            assert_eq!(template.labels()[names::COMPUTE_DOMAIN_LABEL], cd.uid);
            assert_eq!(template.finalizers(), [names::FINALIZER]);
            let request = template.spec.spec.devices.unwrap().requests.unwrap().remove(0);
            assert_eq!(request.exactly.unwrap().allocation_mode.as_deref(), Some(wanted));
            cluster.condition(name, READY, "True", "NoPods").await;
            let finalizers = cluster.cds().get(name).await.unwrap().finalizers().to_vec();
            assert_eq!(finalizers, [names::FINALIZER]);
        }
    });
}

#[test]
fn pods_on_two_nodes_make_it_ready_with_one_channel() {
    test(3, async |cluster: &mut Cluster| {
        let green = cluster.create("green", Channel).await;
        let blue = cluster.create("blue", Channel).await;
        cluster.place(&green, Channel, "n0").await;
        cluster.place(&green, Channel, "n1").await;
        cluster.place(&blue, Channel, "n1").await;
        let (domain, number) = cluster.prepared(&green, "n0").await;
        assert_eq!(domain, home());
        assert_eq!(cluster.prepared(&green, "n1").await, (domain.clone(), number));
        assert_ne!(cluster.prepared(&blue, "n1").await.1, number);
        let text = cluster.condition("green", READY, "True", "NodesReady").await;
        assert_eq!(text, "all of its nodes are ready: 2");
        cluster.condition("green", CHANNEL_ASSIGNED, "True", "Assigned").await;
        cluster.condition("green", ISOLATED, "True", "ByChannel").await;
        cluster.condition("green", DEGRADED, "False", "AsExpected").await;
        let status = cluster.cds().get("green").await.unwrap().status.unwrap();
        assert_eq!(status.channel.as_deref(), Some(number.to_string().as_str()));
        assert_eq!((status.node_count, status.ready_node_count), (2, 2));
        assert_eq!((status.cliques[0].imex_domain.as_str(), status.cliques[0].nodes), (domain.as_str(), 2));
        assert_eq!(status.nodes[0].name, "n0");
        assert!(!cluster.events("NodesReady").await.is_empty());
    });
}

/// A pod for each ComputeDomain and node is half a minute, and its end the end of jobs; a label outlives both (384, 404).
#[test]
fn issues_920_1152_and_357_a_compute_domain_makes_no_pod_moves_no_daemon_and_labels_no_node() {
    test(2, async |cluster: &mut Cluster| {
        let green = cluster.create("green", Channel).await;
        cluster.place(&green, Channel, "n0").await;
        cluster.prepared(&green, "n0").await;
        cluster.end(&green, "n0").await;
        cluster.delete("green").await;
        cluster.gone("green").await;
        cluster.freed(&home(), &green.uid).await;
        let (mut written, mut history) = (BTreeMap::<String, usize>::new(), cluster.server.history());
        while let Some(change) = history.try_next().unwrap() {
            *written.entry(change.kind().to_owned()).or_default() += 1;
        }
        assert_eq!(written["Node"], 2, "the test has made them, and nobody has written to them: {written:?}");
        for kind in ["Pod", "DaemonSet", "Deployment", "Job", "ReplicaSet"] {
            assert_eq!(written.get(kind), None, "{written:?}");
        }
        for node in ["n0", "n1"] {
            cluster.served(node, &home()).await;
        }
    });
}

#[test]
fn a_broken_daemon_is_told_and_so_is_its_recovery() {
    test(2, async |cluster: &mut Cluster| {
        let green = cluster.create("green", Channel).await;
        cluster.place(&green, Channel, "n0").await;
        cluster.condition("green", READY, "True", "NodesReady").await;
        cluster.agent("n0").break_daemon(true);
        let text = cluster.condition("green", DEGRADED, "True", "DaemonNotReady").await;
        assert_eq!(text, "n0 has its IMEX daemon in state DOWN (killed by the test)");
        cluster.condition("green", READY, "False", "NodesNotReady").await;
        cluster.agent("n0").break_daemon(false);
        cluster.condition("green", DEGRADED, "False", "AsExpected").await;
        assert_eq!(cluster.events("Recovered").await.len(), 1);
    });
}

#[test]
fn deleting_waits_for_prepared_claims_and_frees_the_number() {
    test(2, async |cluster: &mut Cluster| {
        let green = cluster.create("green", Channel).await;
        cluster.place(&green, Channel, "n0").await;
        cluster.prepared(&green, "n0").await;
        cluster.delete("green").await;
        let text = cluster.condition("green", READY, "False", "Deleting").await;
        assert!(text.contains("claim green-n0 on node n0"), "{text}");
        let gone = || async { cluster.templates().get_opt("green-channel").await.unwrap().is_none().then_some(()) };
        cluster.until("the template goes at once", gone).await;
        cluster.end(&green, "n0").await;
        cluster.gone("green").await;
        cluster.freed(&home(), &green.uid).await;
    });
}

#[test]
fn an_edited_or_deleted_template_is_put_right() {
    test(0, async |cluster: &mut Cluster| {
        let green = cluster.create("green", Channel).await;
        let first = template(cluster, "green-channel").await;
        let patch = Patch::Merge(json!({"metadata": {"labels": {names::TARGET_LABEL: null}, "finalizers": null}}));
        cluster.templates().patch("green-channel", &PatchParams::default(), &patch).await.unwrap();
        let mended = || async {
            let found = cluster.templates().get("green-channel").await.unwrap();
            (found.labels().contains_key(names::TARGET_LABEL) && !found.finalizers().is_empty()).then_some(())
        };
        cluster.until("labels and finalizer are back", mended).await;
        cluster.templates().delete("green-channel", &DeleteParams::default()).await.unwrap();
        let renewed = || async {
            let found = cluster.templates().get_opt("green-channel").await.unwrap()?;
            (found.uid() != first.uid() && found.metadata.deletion_timestamp.is_none()).then_some(found)
        };
        let renewed = cluster.until("the template is back", renewed).await;
        assert_eq!(renewed.labels()[names::COMPUTE_DOMAIN_LABEL], green.uid);
    });
}

#[test]
fn a_foreign_template_is_told_and_never_touched() {
    test(0, async |cluster: &mut Cluster| {
        let theirs: ResourceClaimTemplate = serde_json::from_value(json!({
            "metadata": {"name": "theirs"}, "spec": {"spec": {}},
        }))
        .unwrap();
        let theirs = cluster.templates().create(&PostParams::default(), &theirs).await.unwrap();
        cluster.create_with_template("green", Channel, "theirs").await;
        let text = cluster.condition("green", READY, "False", "TemplateConflict").await;
        assert!(text.contains("team/theirs exists and is not ours"), "{text}");
        assert_eq!(cluster.templates().get("theirs").await.unwrap().resource_version(), theirs.resource_version());
        cluster.create("blue", Channel).await;
        cluster.condition("blue", READY, "True", "NoPods").await;
        cluster.create_with_template("second", Channel, "blue-channel").await;
        let text = cluster.condition("second", READY, "False", "TemplateConflict").await;
        assert!(text.contains("belongs to ComputeDomain team/blue"), "{text}");
        let events = cluster.until("Events", || async {
            let events = cluster.events("TemplateConflict").await;
            (events.len() == 2).then_some(events)
        });
        assert!(events.await.iter().all(|event| event.type_.as_deref() == Some("Warning")));
        // The one that had the name goes, and its turn comes.
        cluster.delete("blue").await;
        cluster.condition("second", READY, "True", "NoPods").await;
        cluster.delete("green").await;
        cluster.gone("green").await;
        assert_eq!(cluster.templates().get("theirs").await.unwrap().resource_version(), theirs.resource_version());
    });
}

async fn strip(cluster: &Cluster) -> ResourceClaimTemplate {
    let labels = json!({"metadata": {"labels": {names::COMPUTE_DOMAIN_LABEL: null}}});
    cluster.templates().patch("green-channel", &PatchParams::default(), &Patch::Merge(labels)).await.unwrap()
}

/// With our finalizer and without our label it would stay for good, and its namespace with it.
#[test]
fn a_template_that_has_lost_its_label_is_mended_and_goes_with_its_compute_domain() {
    test(0, async |cluster: &mut Cluster| {
        let green = cluster.create("green", Channel).await;
        cluster.condition("green", READY, "True", "NoPods").await;
        let stripped = strip(cluster).await;
        let mended = || async {
            let template = cluster.templates().get("green-channel").await.unwrap();
            (template.labels().get(names::COMPUTE_DOMAIN_LABEL) == Some(&green.uid)).then_some(template)
        };
        assert_eq!(cluster.until("its label is mended", mended).await.uid(), stripped.uid());
        // Nobody sees what is done to it now.
        cluster.kill_controller();
        strip(cluster).await;
        cluster.templates().delete("green-channel", &DeleteParams::default()).await.unwrap();
        cluster.delete("green").await;
        cluster.start_controller();
        cluster.gone("green").await;
        assert!(cluster.templates().get_opt("green-channel").await.unwrap().is_none());
    });
}

/// The same where its ComputeDomain is gone already: by a finalizer that was taken off by hand, or a version of before.
#[test]
fn a_template_without_label_and_compute_domain_is_removed() {
    test_alone(0, async |cluster: &mut Cluster| {
        let green = cluster.create("green", Channel).await;
        let object = serde_json::to_value(cluster.cds().get(&green.name).await.unwrap()).unwrap();
        let green = Cd::read(&serde_json::from_value(object).unwrap()).unwrap();
        let mut left = wanted_template(&green, green.spec.as_ref().unwrap());
        left.metadata.labels = None;
        cluster.templates().create(&PostParams::default(), &left).await.unwrap();
        cluster.delete("green").await;
        cluster.start_controller();
        let gone = || async { cluster.templates().get_opt("green-channel").await.unwrap().is_none().then_some(()) };
        cluster.until("what is left over goes", gone).await;
    });
}

/// By a quota, an admission webhook, a namespace that goes.
#[test]
fn a_template_that_the_api_server_refuses_is_told_and_tried_again() {
    test(0, async |cluster: &mut Cluster| {
        cluster.server.fail_requests(|request| {
            let refused = request.verb == Verb::Create && request.plural == "resourceclaimtemplates";
            refused.then(|| Status::failure("exceeded quota: templates=0", "Forbidden").with_code(403))
        });
        cluster.create("green", Channel).await;
        let text = cluster.condition("green", READY, "False", reason::TEMPLATE_REFUSED).await;
        let wanted = "the API server refuses ResourceClaimTemplate team/green-channel: exceeded quota: templates=0";
        assert_eq!(text, wanted);
        let events = || async { cluster.events(reason::TEMPLATE_REFUSED).await.pop() };
        assert_eq!(cluster.until("an Event", events).await.type_.as_deref(), Some("Warning"));
        cluster.server.fail_requests(|_| None);
        cluster.condition("green", READY, "True", "NoPods").await;
    });
}

#[test]
fn one_created_anew_under_the_same_name_is_another() {
    test(1, async |cluster: &mut Cluster| {
        let first = cluster.create("green", Channel).await;
        cluster.place(&first, Channel, "n0").await;
        let (_, number) = cluster.prepared(&first, "n0").await;
        cluster.end(&first, "n0").await;
        cluster.delete("green").await;
        cluster.gone("green").await;
        let second = cluster.create("green", Channel).await;
        assert_ne!(first.uid, second.uid);
        cluster.place(&second, Channel, "n0").await;
        assert_ne!(cluster.prepared(&second, "n0").await.1, number, "a freed number rests");
        cluster.freed(&home(), &first.uid).await;
        assert_eq!(template(cluster, "green-channel").await.labels()[names::COMPUTE_DOMAIN_LABEL], second.uid);
    });
}

#[test]
fn a_foreign_finalizer_is_left_alone() {
    test(0, async |cluster: &mut Cluster| {
        let _ = cluster.create("green", IsolationMode::Channel).await;
        cluster.condition("green", READY, "True", "NoPods").await;
        let patch = json!({"metadata": {"finalizers": [names::FINALIZER, "example.com/theirs"]}});
        cluster.cds().patch("green", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
        cluster.delete("green").await;
        let seen = || async {
            let found = cluster.cds().get("green").await.unwrap();
            (found.finalizers() == ["example.com/theirs"]).then_some(())
        };
        cluster.until("ours is off, theirs stays", seen).await;
    });
}
