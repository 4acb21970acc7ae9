use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use heddle_core::api::IMEXDomain;
use heddle_core::api::IsolationMode::{Channel, Domain};
use heddle_core::controller::READY;
use heddle_core::fault::reason;
use heddle_core::names;
use heddle_integration::api::Verb;
use kube::ResourceExt;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::json;

use crate::cluster::{Cluster, exclusive, home, test};

#[test]
fn an_idle_cluster_is_not_written_to() {
    test(2, async |cluster: &mut Cluster| {
        let green = cluster.create("green", Channel).await;
        let red = cluster.create("red", Domain).await;
        cluster.place(&green, Channel, "n0").await;
        cluster.place(&red, Domain, "n1").await;
        cluster.condition("green", READY, "True", "NodesReady").await;
        cluster.condition("red", READY, "True", "NodesReady").await;
        let before = cluster.until_quiet().await;
        // Nor by one that starts anew.
        cluster.kill_controller();
        cluster.start_controller();
        assert_eq!(cluster.until_quiet().await, before);
    });
}

/// It was, up to 260 times a second, with writes that changed nothing.
#[test]
fn what_others_keep_from_going_is_not_asked_for_again_and_again() {
    test(1, async |cluster: &mut Cluster| {
        let asked = Arc::new(AtomicUsize::new(0));
        let counted = asked.clone();
        cluster.server.fail_requests(move |request| {
            let changes = !matches!(request.verb, Verb::Get | Verb::List | Verb::Watch);
            counted.fetch_add(usize::from(changes), Ordering::Relaxed);
            None
        });
        let hold = |ours: &str| Patch::Merge(json!({"metadata": {"finalizers": [ours, "other.io/hold"]}}));
        let release = Patch::Merge(json!({"metadata": {"finalizers": null}}));
        let params = PatchParams::default();

        cluster.create("green", Channel).await;
        cluster.condition("green", READY, "True", "NoPods").await;
        cluster.templates().patch("green-channel", &params, &hold(names::FINALIZER)).await.unwrap();
        cluster.templates().delete("green-channel", &DeleteParams::default()).await.unwrap();
        let text = cluster.condition("green", READY, "False", reason::TEMPLATE_CONFLICT).await;
        assert!(text.contains("(other.io/hold)"), "{text}");

        let red = cluster.create("red", Domain).await;
        let own = exclusive(&red.uid);
        cluster.place(&red, Domain, "n0").await;
        assert_eq!(cluster.prepared(&red, "n0").await.0, own);
        cluster.domains().patch(&own, &params, &hold(names::DOMAIN_FINALIZER)).await.unwrap();
        cluster.end(&red, "n0").await;
        cluster.delete("red").await;
        cluster.gone("red").await;
        let held =
            || async { (cluster.domains().get(&own).await.unwrap().finalizers() == ["other.io/hold"]).then_some(()) };
        cluster.until("our finalizer goes", held).await;

        cluster.until_quiet().await;
        let before = asked.load(Ordering::Relaxed);
        cluster.until_quiet().await;
        assert_eq!(asked.load(Ordering::Relaxed), before);

        cluster.templates().patch("green-channel", &params, &release).await.unwrap();
        cluster.condition("green", READY, "True", "NoPods").await;
        cluster.domains().patch(&own, &params, &release).await.unwrap();
    });
}

#[test]
fn what_happened_while_no_controller_ran_is_made_up_for() {
    test(2, async |cluster: &mut Cluster| {
        let green = cluster.create("green", Channel).await;
        let red = cluster.create("red", Domain).await;
        cluster.place(&green, Channel, "n0").await;
        cluster.place(&red, Domain, "n1").await;
        cluster.prepared(&green, "n0").await;
        cluster.prepared(&red, "n1").await;
        cluster.kill_controller();
        cluster.delete("green").await;
        cluster.delete("red").await;
        cluster.end(&green, "n0").await;
        cluster.end(&red, "n1").await;
        cluster.create("blue", Channel).await;
        cluster.start_controller();
        cluster.gone("green").await;
        cluster.gone("red").await;
        cluster.freed(&home(), &green.uid).await;
        cluster.freed(&exclusive(&red.uid), &red.uid).await;
        cluster.served("n1", &home()).await;
        cluster.condition("blue", READY, "True", "NoPods").await;
    });
}

#[test]
fn a_lost_channel_map_is_restored_from_the_nodes() {
    test(2, async |cluster: &mut Cluster| {
        let green = cluster.create("green", Channel).await;
        cluster.place(&green, Channel, "n0").await;
        cluster.place(&green, Channel, "n1").await;
        let held = cluster.prepared(&green, "n0").await;
        cluster.prepared(&green, "n1").await;
        // Deleted by hand, it stays until nothing is forgotten with it.
        cluster.domains().delete(&home(), &DeleteParams::default()).await.unwrap();
        let seen = || async {
            let status = cluster.domains().get_opt(&home()).await.unwrap()?.status?;
            status.channels.get(&green.uid).map(|entry| entry.channel)
        };
        cluster.until_quiet().await;
        assert_eq!(seen().await, Some(held.1));
        cluster.check().await;
        let first = cluster.domains().get(&home()).await.unwrap().uid();
        let lost = Patch::Merge(json!({"status": {"channels": null}}));
        cluster.domains().patch_status(&home(), &PatchParams::default(), &lost).await.unwrap();
        assert_eq!(cluster.until("the map is back again, and soon", seen).await, held.1);
        let blue = cluster.create("blue", Channel).await;
        cluster.place(&blue, Channel, "n0").await;
        assert_ne!(cluster.prepared(&blue, "n0").await.1, held.1);
        cluster.end(&blue, "n0").await;
        cluster.end(&green, "n0").await;
        cluster.end(&green, "n1").await;
        cluster.delete("blue").await;
        cluster.delete("green").await;
        let anew =
            || async { cluster.domains().get_opt(&home()).await.unwrap().filter(|domain| domain.uid() != first) };
        let anew = cluster.until("the domain is made anew", anew).await;
        assert_eq!(anew.metadata.deletion_timestamp, None);
        let red = cluster.create("red", Channel).await;
        cluster.place(&red, Channel, "n1").await;
        cluster.prepared(&red, "n1").await;
        // The map wiped by hand did break S3 for a moment; from here on all is well again.
        cluster.server.compact();
    });
}

#[test]
fn a_status_edited_by_hand_is_put_right() {
    test(0, async |cluster: &mut Cluster| {
        cluster.create("green", Channel).await;
        cluster.condition("green", READY, "True", "NoPods").await;
        let lie = json!({"status": {"status": "NotReady", "conditions": null, "channel": "7", "nodeCount": 99}});
        cluster.cds().patch_status("green", &PatchParams::default(), &Patch::Merge(lie)).await.unwrap();
        cluster.condition("green", READY, "True", "NoPods").await;
        let status = cluster.cds().get("green").await.unwrap().status.unwrap();
        assert_eq!((status.node_count, status.channel), (0, None));
    });
}

#[test]
fn a_label_forged_in_another_namespace_moves_no_node() {
    test(1, async |cluster: &mut Cluster| {
        let red = cluster.create("red", Domain).await;
        cluster.served("n0", &home()).await;
        let forged = heddle_core::api::ComputeDomainRef { name: "forged".into(), ..red.clone() };
        let claim: k8s_openapi::api::resource::v1::ResourceClaim = serde_json::from_value(json!({
            "metadata": {"name": "forged", "labels": {heddle_core::names::COMPUTE_DOMAIN_LABEL: forged.uid}},
            "spec": {},
        }))
        .unwrap();
        let other: kube::Api<_> = kube::Api::namespaced(cluster.client.clone(), "other");
        other.create(&Default::default(), &claim).await.unwrap();
        let result = json!({"driver": heddle_core::names::DRIVER, "pool": "n0", "device": "slot-0", "request": "c"});
        let patch = json!({"status": {"allocation": {"devices": {"results": [result]}}}});
        other.patch_status("forged", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
        cluster.until_quiet().await;
        assert_eq!(cluster.nodes().get("n0").await.unwrap().spec.domain, Some(home()));
        assert_eq!(cluster.server.objects("imex.heddle.dev", "imexdomains").len(), 1);
    });
}

/// A deletion by hand: the finalizer keeps the channel map as long as it says something, then the domain is made anew.
#[test]
fn a_domain_deleted_by_hand_goes_when_its_numbers_are_free_and_comes_again() {
    test(2, async |cluster: &mut Cluster| {
        let green = cluster.create("green", Channel).await;
        cluster.place(&green, Channel, "n0").await;
        let held = cluster.prepared(&green, "n0").await;
        let before = cluster.domains().get(&home()).await.unwrap();
        cluster.domains().delete(&home(), &Default::default()).await.unwrap();
        cluster.place(&green, Channel, "n1").await;
        assert_eq!(cluster.prepared(&green, "n1").await, held, "it works on");

        cluster.end(&green, "n0").await;
        cluster.end(&green, "n1").await;
        cluster.delete("green").await;
        cluster.gone("green").await;
        let anew = || async {
            let domain = cluster.domains().get_opt(&home()).await.unwrap()?;
            let whole = domain.metadata.uid != before.metadata.uid && domain.spec.members.len() == 2;
            let epoch = |domain: &IMEXDomain| domain.status.as_ref().map_or(0, |status| status.epoch);
            // Nodes have marks of the one before.
            (whole && epoch(&domain) > epoch(&before)).then_some(())
        };
        cluster.until("another of its name, with a later epoch", anew).await;
        let blue = cluster.create("blue", Channel).await;
        cluster.place(&blue, Channel, "n1").await;
        assert_eq!(cluster.prepared(&blue, "n1").await.0, home());
    });
}
