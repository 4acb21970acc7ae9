//! Writes that fail, arrive late or are lost, and agents that start again.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use heddle_actors::channel_allocator::Message;
use heddle_actors::node_link::{self};
use heddle_core::api::{DaemonStatus, EpochMark, IMEXDomain, IMEXNode, NodeChannel};
use heddle_core::fault::reason;
use heddle_core::inventory::Fabric;
use heddle_core::protocol;
use heddle_integration::api::{Request, Verb};
use kube::api::{Patch, PatchParams, PostParams};
use kube::core::Status;
use kube::{Api, Client, ResourceExt};
use serde_json::json;

use crate::bed::*;

#[test]
fn issue_1050_an_enter_that_is_fenced_on_its_way_is_decided_anew() {
    run(async {
        let cluster = Cluster::new(&["n0", "n1"]).await;
        assert_eq!(cluster.node("n1").await.enter("x", "green").await, 1);

        // The first write of an entry is held up until the controller has drained the number and fenced the node.
        let (direct, armed) = (cluster.client.clone(), Arc::new(AtomicBool::new(true)));
        let held_up = tower::service_fn(move |request: http::Request<kube::client::Body>| {
            let (direct, armed) = (direct.clone(), armed.clone());
            async move {
                let writes =
                    request.method() == http::Method::PUT && request.uri().path().ends_with("imexnodes/n0/status");
                if writes {
                    let domains = Api::<IMEXDomain>::all(direct.clone());
                    let mut domain = domains.get(&shared()).await.unwrap();
                    let node = Api::<IMEXNode>::all(direct.clone()).get("n0").await.unwrap();
                    let ready = node.spec.domain.is_some() && node.status.is_some_and(|s| s.channel_count > 0);
                    if ready && armed.swap(false, Ordering::Relaxed) {
                        domain.status = protocol::drain(&domain, &[uid("green")].into());
                        let domain = domains.replace_status(&shared(), &PostParams::default(), &domain).await.unwrap();
                        let fence = EpochMark { domain: shared(), epoch: domain.status.unwrap().epoch };
                        let patch = Patch::Merge(json!({"spec": {"fence": fence}}));
                        let nodes = Api::<IMEXNode>::all(direct.clone());
                        nodes.patch("n0", &PatchParams::default(), &patch).await.unwrap();
                    }
                }
                direct.send(request).await
            }
        });
        let node = Node::start(&cluster.runtime.root(), Client::new(held_up, "default"), "n0");
        node.bring_up(&cluster).await;
        node.allocator.tell(Message::Restore { claims: Vec::new() });
        let entering = node.enter("a", "green");
        let watching = async {
            node.until_missing("a", reason::CHANNEL_DRAINING).await;
            let fenced = cluster.nodes().get("n0").await.unwrap();
            assert_eq!(lists(&fenced, "green"), None, "the entry was never written");
            // The number comes back, and the ComputeDomain is given another.
            cluster
                .nodes()
                .patch("n1", &PatchParams::default(), &Patch::Merge(json!({"spec": {"fence": fenced.spec.fence}})))
                .await
                .unwrap();
            let mut domain = cluster.domain().await;
            domain.status.as_mut().unwrap().channels.clear();
            domain.status.as_mut().unwrap().epoch += 1;
            cluster.domains().replace_status(&shared(), &PostParams::default(), &domain).await.unwrap();
        };
        let (channel, ()) = futures::join!(entering, watching);
        assert_eq!(channel, 2, "a freed number rests while others are free");
    });
}

#[test]
fn a_leave_is_tried_until_it_is_done() {
    run(async {
        let cluster = Cluster::new(&["n0"]).await;
        let node = cluster.node("n0").await;
        node.enter("a", "green").await;
        let refused = Arc::new(AtomicU32::new(0));
        let count = refused.clone();
        cluster.server.fail_requests(move |request: &Request| {
            let write = request.verb == Verb::Update && request.plural == "imexnodes";
            (write && count.fetch_add(1, Ordering::Relaxed) < 3)
                .then(|| Status::failure("try later", "ServiceUnavailable").with_code(503))
        });
        node.leave("a", "green");
        cluster.until("n0", |node| lists(node, "green").is_none()).await;
        assert!(refused.load(Ordering::Relaxed) > 3);
    });
}

#[test]
fn a_leave_that_arrives_late_takes_nothing_from_a_claim_that_came_meanwhile() {
    for restarted in [false, true] {
        run(async {
            let cluster = Cluster::new(&["n0"]).await;
            let (armed, held) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(None)));
            let (direct, lose, keep) = (cluster.client.clone(), armed.clone(), held.clone());
            let lossy = tower::service_fn(move |request: http::Request<kube::client::Body>| {
                let (direct, lose, keep) = (direct.clone(), lose.clone(), keep.clone());
                async move {
                    let writes = request.method() == http::Method::PUT && request.uri().path().contains("imexnodes");
                    if writes && lose.swap(false, Ordering::Relaxed) {
                        *keep.lock().unwrap() = Some(request);
                        return Err(tower::BoxError::from("connection reset by peer"));
                    }
                    Ok(direct.send(request).await?)
                }
            });
            let mut node = Node::start(&cluster.runtime.root(), Client::new(lossy, "default"), "n0");
            node.bring_up(&cluster).await;
            node.allocator.tell(Message::Restore { claims: Vec::new() });
            let channel = node.enter("a", "green").await;
            armed.store(true, Ordering::Relaxed);
            node.leave("a", "green");
            let late = loop {
                if let Some(late) = held.lock().unwrap().take() {
                    break late;
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            };
            if restarted {
                node.scope.stop();
                node = Node::start(&cluster.runtime.root(), cluster.client.clone(), "n0");
                node.bring_up(&cluster).await;
            }
            assert_eq!(node.enter("b", "green").await, channel);
            let answer = cluster.client.send(late).await.unwrap();
            assert_eq!(answer.status(), http::StatusCode::CONFLICT, "restarted: {restarted}");
            assert_eq!(lists(&cluster.nodes().get("n0").await.unwrap(), "green"), Some(channel));
        });
    }
}

#[test]
fn a_restarted_agent_keeps_what_is_prepared_and_leaves_the_rest() {
    run(async {
        let cluster = Cluster::new(&["n0"]).await;
        let node = cluster.node("n0").await;
        let (green, blue) = (node.enter("a", "green").await, node.enter("b", "blue").await);
        node.scope.stop();

        let node = Node::start(&cluster.runtime.root(), cluster.client.clone(), "n0");
        node.bring_up(&cluster).await;
        assert_eq!(node.enter("c", "green").await, green, "enters do not wait for the checkpoints");
        assert!(lists(&cluster.nodes().get("n0").await.unwrap(), "blue") == Some(blue), "but leaves do");
        assert!(node.may_switch.borrow().as_ref().is_none_or(Result::is_err));
        node.allocator.tell(Message::Restore { claims: vec![prepared("a", "green", green)] });
        let after = cluster.until("n0", |node| lists(node, "blue").is_none()).await;
        assert_eq!(lists(&after, "green"), Some(green));
        node.leave("c", "green");
        assert!(node.verify(prepared("a", "green", green)).await.is_ok());
        assert!(node.may_switch.borrow().as_ref().is_some_and(Result::is_err));
        node.leave("a", "green");
        cluster.until("n0", |node| lists(node, "green").is_none()).await;
        assert_eq!(*node.may_switch.borrow(), Some(Ok(())));
    });
}

#[test]
fn a_lost_entry_is_put_back_with_its_number() {
    run(async {
        let cluster = Cluster::new(&["n0"]).await;
        let node = cluster.node("n0").await;
        let channel = node.enter("a", "green").await;
        cluster.nodes().delete("n0", &Default::default()).await.unwrap();
        let back = cluster.until("n0", |node| lists(node, "green").is_some()).await;
        assert_eq!(lists(&back, "green"), Some(channel));
        assert!(node.verify(prepared("a", "green", channel)).await.is_ok());
    });
}

#[test]
fn the_status_says_everything_and_is_written_only_when_it_changes() {
    run(async {
        let cluster = Cluster::new(&["n0"]).await;
        let node = cluster.node("n0").await;
        let daemon =
            DaemonStatus { state: "READY".into(), domain: Some(shared()), index: Some(0), ..Default::default() };
        node.link.tell(node_link::Message::Daemon(daemon.clone()));
        let seen = cluster.until("n0", |node| node.status.as_ref().is_some_and(|s| s.daemon.state == "READY")).await;
        let status = seen.status.clone().unwrap();
        assert_eq!(status.daemon, daemon);
        assert_eq!((status.clique, status.boot_id.as_str()), (Some(clique().to_string()), "boot"));
        assert_eq!((status.channel_count, status.addresses), (CHANNELS, vec!["127.10.0.1".to_owned()]));
        let version = seen.resource_version();
        node.link.tell(node_link::Message::Daemon(daemon));
        node.fabric(Fabric::Ready(clique()));
        // A fabric that is not well is no other clique.
        node.fabric(Fabric::Unhealthy("x".into()));
        node.fabric(Fabric::Ready(clique()));
        node.enter("a", "green").await;
        let after = cluster.nodes().get("n0").await.unwrap();
        let next = |version: Option<String>| version.unwrap().parse::<u64>().unwrap();
        // The allocation and the entry.
        assert_eq!(next(after.resource_version()), next(version) + 2);
        let _: &NodeChannel = &after.status.unwrap().channels[&uid("green")];
    });
}

#[test]
fn an_api_that_comes_late_or_drops_its_watches_is_waited_for() {
    run(async {
        let cluster = Cluster::new(&["n0"]).await;
        cluster.server.fail_requests(|request: &Request| {
            (request.user_agent != "test").then(|| Status::failure("not yet", "ServiceUnavailable").with_code(503))
        });
        let node = Node::start(&cluster.runtime.root(), cluster.client.clone(), "n0");
        node.fabric(Fabric::Ready(clique()));
        assert!(
            node.verify(prepared("a", "green", 3)).await.is_ok(),
            "the checkpoint is enough while nothing is known"
        );
        node.leave("a", "green");
        cluster.server.heal();
        node.bring_up(&cluster).await;
        node.allocator.tell(Message::Restore { claims: Vec::new() });
        cluster.server.disconnect();
        assert_eq!(node.enter("a", "green").await, 1);
    });
}
