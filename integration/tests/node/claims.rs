//! What claims get, and what they wait for.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use heddle_actors::channel_admin::{self, Wanted};
use heddle_actors::channel_allocator::Message;
use heddle_core::api::{DomainKind, IMEXNode, ImexMode, IsolationMode};
use heddle_core::claim::Grant;
use heddle_core::fault::{Class, reason};
use heddle_core::imex::agreement::CHANNELS_AGREE;
use heddle_core::imex::{Standing, exclusive_domain_name, host_refusal};
use heddle_core::inventory::Fabric;
use heddle_core::runtime_guard::{Guard, Mode, Verdict};
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::json;

use crate::bed::*;

#[test]
fn all_nodes_of_a_fresh_compute_domain_get_one_number_by_one_allocation() {
    run(async {
        let names = ["n0", "n1", "n2", "n3", "n4", "n5"];
        let cluster = Cluster::new(&names).await;
        let mut nodes = Vec::new();
        for name in names {
            nodes.push(cluster.node(name).await);
        }
        let entered = futures::future::join_all(nodes.iter().map(|node| node.enter("a", "green"))).await;
        assert_eq!(entered, [1; 6]);
        assert_eq!(cluster.writes().0, 1, "one allocation wins");
        for name in names {
            assert_eq!(lists(&cluster.nodes().get(name).await.unwrap(), "green"), Some(1));
        }
    });
}

#[test]
fn issue_353_354_and_468_compute_domains_that_come_at_once_never_share_a_number() {
    run(async {
        let names = ["n0", "n1", "n2"];
        let cluster = Cluster::new(&names).await;
        let mut nodes = Vec::new();
        for name in names {
            nodes.push(cluster.node(name).await);
        }
        let colours = ["green", "blue", "yellow", "red", "pink"];
        let all = nodes
            .iter()
            .flat_map(|node| colours.map(|colour| async move { (colour, node.enter(colour, colour).await) }));
        let mut numbers = BTreeMap::<&str, BTreeSet<u32>>::new();
        for (colour, channel) in futures::future::join_all(all).await {
            numbers.entry(colour).or_default().insert(channel);
        }
        assert!(numbers.values().all(|of_one| of_one.len() == 1), "{numbers:?}");
        let distinct: BTreeSet<_> = numbers.values().flatten().collect();
        assert_eq!(distinct.len(), colours.len(), "{numbers:?}");
        assert_eq!(cluster.writes().0, colours.len());
    });
}

#[test]
fn the_first_claim_enters_the_last_one_leaves_and_nothing_else_is_written() {
    run(async {
        let cluster = Cluster::new(&["n0"]).await;
        let node = cluster.node("n0").await;
        assert_eq!(node.enter("a", "green").await, 1);
        let before = cluster.server.resource_version();
        assert_eq!(node.enter("b", "green").await, 1);
        assert_eq!(node.enter("b", "green").await, 1, "asked again");
        node.leave("a", "green");
        node.leave("never-seen", "green");
        node.leave("b", "blue");
        assert!(node.verify(prepared("b", "green", 1)).await.is_ok());
        assert_eq!(cluster.server.resource_version(), before);
        node.leave("b", "green");
        let left = cluster.until("n0", |node| lists(node, "green").is_none()).await;
        assert!(left.status.unwrap().observed.is_some(), "a leave says on which map it was decided");
        assert_eq!(cluster.server.resource_version(), before + 1);
    });
}

#[test]
fn a_claim_that_has_waited_gets_no_channel_for_a_compute_domain_that_is_going_away() {
    run(async {
        let cluster = Cluster::new(&["n0"]).await;
        let node = Node::start(&cluster.runtime.root(), cluster.client.clone(), "n0");
        let going = async {
            node.until_missing("b", reason::NVML).await;
            let blue = Patch::Merge(json!({"metadata": {"finalizers": null}}));
            cluster.compute_domains().patch("blue", &PatchParams::default(), &blue).await.unwrap();
            for name in ["green", "blue"] {
                cluster.compute_domains().delete(name, &Default::default()).await.unwrap();
            }
            node.bring_up(&cluster).await;
        };
        let enter = |claim, name| node.enter_in(claim, name, IsolationMode::Channel);
        let (green, blue, ()) = futures::join!(enter("a", "green"), enter("b", "blue"), going);
        for (answer, expected) in [(green, reason::COMPUTE_DOMAIN_DELETING), (blue, reason::COMPUTE_DOMAIN_GONE)] {
            let fault = answer.unwrap_err();
            assert_eq!((fault.class, fault.reason), (Class::Permanent, expected), "{fault}");
        }
        assert_eq!(cluster.domain().await.status, None, "nothing was ever allocated");
    });
}

#[test]
fn a_compute_domain_that_is_going_away_is_still_entered_where_it_has_a_channel() {
    run(async {
        let cluster = Cluster::new(&["n0", "n1"]).await;
        let (first, second) = (cluster.node("n0").await, cluster.node("n1").await);
        assert_eq!(first.enter("a", "green").await, 1);
        cluster.compute_domains().delete("green", &Default::default()).await.unwrap();
        assert_eq!(second.enter("b", "green").await, 1, "until the controller drains it");
    });
}

#[test]
fn what_a_claim_waits_for_is_said_at_every_stage() {
    run(async {
        let cluster = Cluster::new(&["n0"]).await;
        let node = Node::start(&cluster.runtime.root(), cluster.client.clone(), "n0");
        let stages = async {
            node.until_missing("a", reason::NVML).await;
            node.fabric(Fabric::Pending("probing".into()));
            node.until_missing("a", reason::FABRIC_UNHEALTHY).await;
            node.fabric(Fabric::Ready(clique()));
            let fault = node.until_missing("a", reason::DOMAIN_PENDING).await;
            assert!(fault.message.contains("team/green") && fault.message.contains("not assigned"), "{fault}");
            cluster.assign("n0", "exclusive-other").await;
            loop {
                if node.missing("a").await.message.contains("still belongs to exclusive-other") {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            cluster.assign("n0", &shared()).await;
            node.until_missing("a", reason::DAEMON_NOT_READY).await;
            node.allocator.tell(Message::Daemon(Err("the IMEX daemon is INIT_GPU, not READY".into())));
            let fault = node.until_missing("a", reason::DAEMON_NOT_READY).await;
            assert_eq!(fault.class, Class::Retryable);
            node.allocator.tell(Message::Daemon(Ok(shared())));
        };
        let (channel, ()) = futures::join!(node.enter("a", "green"), stages);
        assert_eq!(channel, 1);
        assert_eq!(node.missing("a").await.reason, reason::SUPERSEDED);
    });
}

#[test]
fn exhaustion_is_said_and_passes_when_a_number_is_freed() {
    run(async {
        let cluster = Cluster::new(&["n0"]).await;
        let node = cluster.node("n0").await;
        let mut domain = cluster.domain().await;
        let mut status = domain.status.take().unwrap_or_default();
        for channel in 1..CHANNELS {
            let entry =
                heddle_core::api::ChannelEntry { channel, compute_domain: "team/x".into(), ..Default::default() };
            status.channels.insert(format!("uid-{channel}"), entry);
        }
        status.epoch = 1;
        domain.status = Some(status);
        let domain = cluster.domains().replace_status(&shared(), &PostParams::default(), &domain).await.unwrap();
        let freed = async {
            let fault = node.until_missing("a", reason::CHANNELS_EXHAUSTED).await;
            let words = format!("no free IMEX channel in domain {} (2047 in use) (for ", shared());
            assert!(fault.message.starts_with(&words), "{fault}");
            let mut domain = domain.clone();
            let status = domain.status.as_mut().unwrap();
            status.channels.remove("uid-77");
            status.epoch += 1;
            cluster.domains().replace_status(&shared(), &PostParams::default(), &domain).await.unwrap();
        };
        let (channel, ()) = futures::join!(node.enter("a", "green"), freed);
        assert_eq!(channel, 77);
    });
}

#[test]
fn a_clash_is_said_and_the_compute_domain_gets_no_new_claims() {
    run(async {
        let cluster = Cluster::new(&["n0", "n1"]).await;
        let (other, node) =
            (cluster.node("n1").await, Node::start(&cluster.runtime.root(), cluster.client.clone(), "n0"));
        assert_eq!(other.enter("x", "blue").await, 1);
        node.bring_up(&cluster).await;
        node.allocator.tell(Message::Restore { claims: vec![prepared("a", "green", 1)] });
        let fault = loop {
            // Until the node has read the domain there is nothing that contradicts the checkpoint.
            if let Err(fault) = node.verify(prepared("a", "green", 1)).await {
                break fault;
            }
        };
        assert_eq!(fault.reason, reason::CHANNEL_CLASH);
        let fault = node.enter_in("b", "green", IsolationMode::Channel).await.unwrap_err();
        assert_eq!(fault.reason, reason::CHANNEL_CLASH);
        // Not even whose number it is gets it beside pods of another.
        let fault = node.enter_in("c", "blue", IsolationMode::Channel).await.unwrap_err();
        assert_eq!((fault.reason, fault.class), (reason::CHANNEL_CLASH, Class::Retryable), "{fault}");
        assert_eq!(node.enter("d", "red").await, 2, "others are not disturbed");
        node.leave("a", "green");
        assert_eq!(node.enter("b", "green").await, 3, "and it passes with the claim");
        assert_eq!(node.enter("c", "blue").await, 1);
    });
}

#[test]
fn a_node_that_is_released_and_lives_lists_again_what_its_claims_use_and_says_whose_it_is() {
    run(async {
        let cluster = Cluster::new(&["n0", "n1"]).await;
        let (node, other) = (cluster.node("n0").await, cluster.node("n1").await);
        assert_eq!(node.enter("a", "green").await, 1);
        let wanted = Wanted { node: "n0".into(), compute_domain: None, vouched: true, dry_run: false };
        let release = async || {
            let release = channel_admin::release(&cluster.client, &wanted).await.unwrap();
            assert_eq!(release.channels[&uid("green")].channel, 1);
            cluster.until("n0", |node| lists(node, "green") == Some(1)).await
        };
        let agrees = |node: &IMEXNode| {
            let conditions = node.status.iter().flat_map(|status| &status.conditions);
            let told = conditions.into_iter().find(|known| known.type_ == CHANNELS_AGREE);
            told.map(|told| told.status == "True")
        };
        // Nobody has had the number since.
        assert_ne!(agrees(&release().await), Some(false));
        // Its ComputeDomain has gone meanwhile, and the number was given to another.
        let mut domain = cluster.domain().await;
        let map = domain.status.as_mut().unwrap();
        let entry = map.channels.remove(&uid("green")).unwrap();
        map.channels.insert(uid("blue"), entry);
        map.epoch += 1;
        cluster.domains().replace_status(&shared(), &PostParams::default(), &domain).await.unwrap();
        cluster.until("n0", |node| agrees(node) == Some(false)).await;
        release().await;
        let fault = node.enter_in("b", "green", IsolationMode::Channel).await.unwrap_err();
        assert_eq!(fault.reason, reason::CHANNEL_CLASH);
        assert_eq!(other.enter("x", "blue").await, 1, "never re-numbered");
        // The pod is deleted, and all is well.
        node.leave("a", "green");
        cluster.until("n0", |node| lists(node, "green").is_none() && agrees(node) == Some(true)).await;
        assert_eq!(node.enter("b", "green").await, 2);
    });
}

#[test]
fn an_imexnode_deleted_by_hand_is_made_anew_with_what_claims_use() {
    run(async {
        let cluster = Cluster::new(&["n0"]).await;
        let node = cluster.node("n0").await;
        assert_eq!((node.enter("a", "green").await, node.enter("b", "blue").await), (1, 2));
        cluster.nodes().delete("n0", &Default::default()).await.unwrap();
        let both = |node: &IMEXNode| (lists(node, "green"), lists(node, "blue")) == (Some(1), Some(2));
        let anew = cluster.until("n0", both).await;
        assert_eq!(anew.spec.domain, None, "the controller moves it in anew");
        cluster.assign("n0", &shared()).await;
        assert_eq!(node.enter("c", "green").await, 1);
        for (claim, name) in [("a", "green"), ("c", "green"), ("b", "blue")] {
            node.leave(claim, name);
        }
        cluster.until("n0", |node| node.status.as_ref().unwrap().channels.is_empty()).await;
    });
}

#[test]
fn an_exclusive_claim_waits_for_its_domain_and_a_suspended_daemon_grants_nothing() {
    run(async {
        let cluster = Cluster::new(&["n0"]).await;
        let node = cluster.node("n0").await;
        let own = exclusive_domain_name(&clique(), &uid("red"));
        let moving = async {
            node.until_missing("a", reason::DOMAIN_PENDING).await;
            let may = node.allocator.ask(|reply| Message::Suspend { reply }).await.unwrap();
            assert_eq!(may, Ok(()), "a claim that waits for the switch does not hold it up");
            cluster.make_domain(&own, DomainKind::Exclusive, Some(cd("red")), &["n0"]).await;
            cluster.assign("n0", &own).await;
            node.until_missing("a", reason::DAEMON_NOT_READY).await;
            node.allocator.tell(Message::Daemon(Ok(own.clone())));
        };
        let (grant, ()) = futures::join!(node.enter_in("a", "red", IsolationMode::Domain), moving);
        assert_eq!(grant, Ok(Grant::Channel { channel: 1, domain: own.clone(), channel_count: CHANNELS }));
        let may = node.allocator.ask(|reply| Message::Suspend { reply }).await.unwrap();
        assert!(may.unwrap_err().contains("prepared"));
    });
}

#[test]
fn a_node_without_fabric_gives_no_channel_and_one_with_a_sick_one_says_so() {
    run(async {
        let cluster = Cluster::new(&[]).await;
        let node = Node::start(&cluster.runtime.root(), cluster.client.clone(), "n0");
        node.fabric(Fabric::None);
        assert_eq!(node.enter_in("a", "green", IsolationMode::Channel).await, Ok(Grant::NoFabric));
        node.fabric(Fabric::Unhealthy("degraded bandwidth".into()));
        let fault = node.enter_in("b", "green", IsolationMode::Channel).await.unwrap_err();
        assert!(fault.reason == reason::FABRIC_UNHEALTHY && fault.message.contains("degraded bandwidth"), "{fault}");
        node.allocator.tell(Message::Restore { claims: Vec::new() });
        assert!(node.allocator.ask(|reply| Message::Suspend { reply }).await.unwrap().is_ok(), "nothing is held");
    });
}

#[test]
fn a_node_whose_second_door_is_open_refuses_new_claims_and_keeps_those_that_are_prepared() {
    run(async {
        let cluster = Cluster::new(&["n0"]).await;
        let node = cluster.node("n0").await;
        assert_eq!(node.enter("a", "green").await, 1);
        let guard = Guard::new(Mode::Require);
        let open = Verdict::Open { why: "pods get channels".into(), set: "set x in /y".into() };
        node.allocator.tell(Message::Guard(guard.seen(open)));
        let fault = node.enter_in("b", "green", IsolationMode::Channel).await.unwrap_err();
        assert_eq!((fault.class, fault.reason), (Class::Retryable, reason::RUNTIME_GUARD_OPEN));
        assert!(fault.message.contains("set x in /y"), "{fault}");
        assert!(node.verify(prepared("a", "green", 1)).await.is_ok());
        node.allocator.tell(Message::Guard(guard.seen(Verdict::Closed)));
        assert_eq!(node.enter("b", "green").await, 1);
    });
}

#[test]
fn a_cancelled_claim_gives_back_what_was_entered_for_it() {
    run(async {
        let cluster = Cluster::new(&["n0"]).await;
        let node = cluster.node("n0").await;
        node.enter("a", "green").await;
        node.allocator.tell(Message::Cancel { claim_uid: "a".into() });
        cluster.until("n0", |node| lists(node, "green").is_none()).await;
    });
}

#[test]
fn an_exclusive_claim_on_a_node_with_a_daemon_of_its_host_is_refused_for_good() {
    run(async {
        let cluster = Cluster::new(&["n0"]).await;
        let node = cluster.node("n0").await;
        node.allocator.tell(Message::Standing(Standing::settled(ImexMode::HostManaged)));
        assert_eq!(node.enter("a", "green").await, 1, "channels are given as ever");
        let fault = node.enter_in("b", "red", IsolationMode::Domain).await.unwrap_err();
        assert_eq!((fault.class, fault.reason), (Class::Permanent, reason::HOST_MANAGED_IMEX));
        assert_eq!(fault, host_refusal(&cd("red"), "node n0"), "in the words of the condition");
        node.fabric(Fabric::None);
        let grant = node.enter_in("c", "red", IsolationMode::Domain).await.unwrap();
        assert_eq!(grant, Grant::NoFabric, "without NVLink there is nothing to keep apart");
    });
}

#[test]
fn issue_1163_while_the_mode_is_to_change_nothing_new_is_granted_and_what_is_there_stays() {
    run(async {
        let cluster = Cluster::new(&["n0"]).await;
        let node = cluster.node("n0").await;
        node.allocator.tell(Message::Restore { claims: Vec::new() });
        assert_eq!(node.enter("a", "green").await, 1);
        let held = Standing { acts: ImexMode::DriverManaged, wanted: ImexMode::HostManaged, holding: 1 };
        node.allocator.tell(Message::Standing(held));
        for (claim, name) in [("b", "green"), ("c", "blue")] {
            let fault = node.enter_in(claim, name, IsolationMode::Channel).await.unwrap_err();
            assert_eq!((fault.class, fault.reason), (Class::Retryable, reason::IMEX_MODE_PENDING));
            assert!(fault.message.contains("one claim prepared while it was driver-managed"), "{fault}");
        }
        assert_eq!(lists(&cluster.nodes().get("n0").await.unwrap(), "green"), Some(1));
        assert!(node.may_switch.borrow().as_ref().unwrap().is_err(), "the daemon of before is kept");
        node.leave("a", "green");
        cluster.until("n0", |object| lists(object, "green").is_none()).await;
        node.allocator.tell(Message::Standing(Standing::settled(ImexMode::HostManaged)));
        node.enter("b", "green").await;
    });
}
