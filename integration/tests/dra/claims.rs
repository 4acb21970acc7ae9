//! Prepare and Unprepare.

use heddle_core::claim::Grant;
use heddle_core::names;
use heddle_integration::api::Verb;
use heddle_proto::dra::v1beta1;
use serde_json::json;

use crate::bed::{Bed, dial, run};

#[test]
fn a_claim_gets_its_channel_and_gives_it_back() {
    run(|| async {
        let bed = Bed::new().await;
        let (agent, domain, claim) = bed.start_with_claim().await;

        let answer = agent.prepare(&[&claim]).await.remove(&claim.uid).unwrap();
        assert_eq!(answer.error, "");
        let device = &answer.devices[0];
        assert_eq!((device.pool_name.as_str(), device.device_name.as_str()), ("n1", "slot-3"));
        assert_eq!(device.request_names, ["channel"]);
        let channel = "/dev/nvidia-caps-imex-channels/channel7".to_owned();
        assert_eq!(bed.inject(&device.cdi_device_ids), [(channel, 234, 7)]);
        assert_eq!(bed.stub.borrow().held[&claim.uid], domain);

        let shown = loop {
            let status = bed.read_claim("c").await.status.unwrap();
            if let Some(devices) = status.devices {
                break serde_json::to_value(devices).unwrap();
            }
            tokio::time::sleep(std::time::Duration::from_millis(2)).await;
        };
        assert_eq!(shown[0]["data"], json!({"channel": 7, "domain": "shared-0"}));
        assert_eq!(shown[0]["conditions"][0]["type"], "Ready");

        bed.requests();
        agent.unprepare(&claim).await.unwrap();
        assert_eq!(bed.requests(), []);
        assert!(bed.cdi_files().is_empty() && bed.checkpoints().is_empty());
        assert!(bed.stub.borrow().held.is_empty());
    });
}

#[test]
fn the_second_claim_of_a_compute_domain_costs_one_read_and_one_write() {
    run(|| async {
        let bed = Bed::new().await;
        let agent = bed.start().await;
        let domain = bed.compute_domain("team", "green", json!({})).await;
        let (first, second) = (bed.claim("a", &domain).await, bed.claim("b", &domain).await);
        agent.prepare_one(&first).await.unwrap();
        loop {
            if bed.requests().contains(&(Verb::Patch, "resourceclaims".into())) {
                break;
            }
            tokio::time::sleep(std::time::Duration::from_millis(2)).await;
        }
        agent.prepare_one(&second).await.unwrap();
        let mut asked = bed.requests();
        while asked.len() < 2 {
            tokio::time::sleep(std::time::Duration::from_millis(2)).await;
            asked.extend(bed.requests());
        }
        assert_eq!(asked, [(Verb::Get, "resourceclaims".into()), (Verb::Patch, "resourceclaims".into())]);
    });
}

#[test]
fn a_status_that_may_not_be_written_is_tried_once_and_stops_no_claim() {
    run(|| async {
        let bed = Bed::new().await;
        let (agent, domain, first) = bed.start_with_claim().await;
        let second = bed.claim("c2", &domain).await;
        let writes = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let counted = writes.clone();
        bed.server.fail_requests(move |request| {
            let ours = request.verb == Verb::Patch && request.plural == "resourceclaims";
            ours.then(|| {
                counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                // As Kubernetes 1.36 denies it where the rule on resourceclaims/driver is missing.
                serde_json::from_value(json!({"status": "Failure", "reason": "Invalid", "code": 422, "message": "denied",
                    "details": {"causes": [{"reason": "FieldValueForbidden", "field": "status.devices[0]", "message": "m"}]}}))
                .unwrap()
            })
        });
        for claim in [&first, &second] {
            agent.prepare_one(claim).await.unwrap();
        }
        agent.until(|| writes.load(std::sync::atomic::Ordering::Relaxed) >= 2).await;
        for claim in [&first, &second] {
            agent.unprepare(claim).await.unwrap();
        }
        assert_eq!(writes.load(std::sync::atomic::Ordering::Relaxed), 2, "once for each claim");
        assert!(bed.cdi_files().is_empty());
    });
}

#[test]
fn case_14_the_same_uid_twice_in_parallel_has_one_effect_and_both_are_answered() {
    run(|| async {
        let bed = Bed::new().await;
        let (agent, _, claim) = bed.start_with_claim().await;
        bed.stub.borrow_mut().hold = true;
        let release = async {
            agent.until(|| bed.stub.borrow().enters == 1).await;
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            bed.stub.borrow_mut().release();
        };
        let (one, two, ()) = tokio::join!(agent.prepare_one(&claim), agent.prepare_one(&claim), release);
        assert_eq!(one.unwrap(), two.unwrap());
        assert_eq!((bed.stub.borrow().enters, bed.cdi_files().len()), (1, 1));
    });
}

#[test]
fn case_17_a_batch_with_a_bad_claim_has_an_entry_for_each() {
    run(|| async {
        let bed = Bed::new().await;
        let agent = bed.start().await;
        let domain = bed.compute_domain("team", "green", json!({})).await;
        let (a, b) = (bed.claim("a", &domain).await, bed.claim("b", &domain).await);
        let bad = bed.claim("bad", "../../etc/passwd").await;
        let answers = agent.prepare(&[&a, &bad, &b]).await;
        assert!(answers[&a.uid].error.is_empty() && answers[&b.uid].error.is_empty());
        assert!(answers[&bad.uid].error.contains("domainID"), "{}", answers[&bad.uid].error);
        assert_eq!(bed.checkpoints().len(), 2);
    });
}

#[test]
fn issue_1368_a_forged_claim_is_refused_for_good_with_an_event() {
    run(|| async {
        let bed = Bed::new().await;
        let agent = bed.start().await;
        let foreign = bed.compute_domain("other", "green", json!({})).await;
        let claim = bed.claim("c", &foreign).await;
        let error = agent.prepare_one(&claim).await.unwrap_err();
        assert!(error.contains("namespace team") && error.contains("own namespace"), "{error}");
        assert!(bed.cdi_files().is_empty() && bed.checkpoints().is_empty());
        assert_eq!(bed.stub.borrow().enters, 0);
        agent.until(|| !bed.server.objects("", "events").is_empty()).await;
        let event = &bed.server.objects("", "events")[0];
        assert_eq!((event["reason"].as_str(), event["type"].as_str()), (Some("ComputeDomainGone"), Some("Warning")));

        let mut anew = claim.clone();
        anew.uid = "11111111-2222-4333-8444-555555555555".into();
        assert!(agent.prepare_one(&anew).await.unwrap_err().contains("made anew"));
        anew.name = "../../pods/x".into();
        assert!(agent.prepare_one(&anew).await.unwrap_err().contains("cannot be the name"));
    });
}

#[test]
fn case_11_a_prepare_that_hangs_is_answered_in_our_own_words_and_its_late_result_is_kept() {
    run(|| async {
        let bed = Bed::new().await;
        let (agent, _, claim) = bed.start_with_claim().await;
        bed.stub.borrow_mut().hold = true;
        let mut plugin = agent.plugin(names::DRIVER).await;
        let call = async {
            let request = heddle_proto::dra::v1::NodePrepareResourcesRequest { claims: vec![claim.clone()] };
            plugin.node_prepare_resources(request).await.unwrap().into_inner()
        };
        let clock = async {
            agent.until(|| bed.stub.borrow().enters == 1).await;
            tokio::time::pause();
        };
        let before = std::time::Instant::now();
        let (answer, ()) = tokio::join!(call, clock);
        tokio::time::resume();
        assert!(before.elapsed().as_secs() < 30, "the clock was not paused");
        let error = &answer.claims[&claim.uid].error;
        assert_eq!(error, "not prepared after 40 s: the IMEX daemon of this node is not READY: WAITING_FOR_PEERS");

        bed.stub.borrow_mut().release();
        agent.until(|| bed.cdi_files().len() == 1).await;
        agent.prepare_one(&claim).await.unwrap();
        assert_eq!(bed.stub.borrow().enters, 1);
    });
}

#[test]
fn case_29_a_pod_deleted_during_prepare_leaves_nothing() {
    run(|| async {
        let bed = Bed::new().await;
        let (agent, _, claim) = bed.start_with_claim().await;
        bed.stub.borrow_mut().hold = true;
        let undo = async {
            agent.until(|| bed.stub.borrow().enters == 1).await;
            agent.unprepare(&claim).await.unwrap();
            bed.stub.borrow_mut().release();
        };
        let (prepared, ()) = tokio::join!(agent.prepare_one(&claim), undo);
        assert!(prepared.unwrap_err().contains("unprepared while"));
        assert!(bed.cdi_files().is_empty() && bed.checkpoints().is_empty());
        assert!(bed.stub.borrow().held.is_empty());
        agent.prepare_one(&claim).await.unwrap();
    });
}

#[test]
fn case_30_a_claim_that_was_never_prepared_is_unprepared_without_the_api() {
    run(|| async {
        let bed = Bed::new().await;
        let agent = bed.start().await;
        bed.api_away();
        bed.requests();
        let unknown = heddle_proto::dra::v1::Claim {
            namespace: "team".into(),
            name: "c".into(),
            uid: "11111111-2222-4333-8444-555555555555".into(),
        };
        agent.unprepare(&unknown).await.unwrap();
        let nonsense = heddle_proto::dra::v1::Claim { uid: "../x".into(), ..unknown };
        agent.unprepare(&nonsense).await.unwrap();
        assert_eq!(bed.requests(), []);
    });
}

#[test]
fn case_50_while_the_api_is_away_known_claims_work_and_others_are_told() {
    run(|| async {
        let bed = Bed::new().await;
        let agent = bed.start().await;
        let domain = bed.compute_domain("team", "green", json!({})).await;
        let (known, unknown) = (bed.claim("a", &domain).await, bed.claim("b", &domain).await);
        let ids = agent.prepare_one(&known).await.unwrap();
        bed.api_away();
        assert_eq!(agent.prepare_one(&known).await.unwrap(), ids);
        let error = agent.prepare_one(&unknown).await.unwrap_err();
        assert!(error.contains("the API server could not be asked for ResourceClaim team/b"), "{error}");
        agent.unprepare(&known).await.unwrap();
        bed.heal();
        agent.prepare_one(&unknown).await.unwrap();
    });
}

#[test]
fn an_exclusive_claim_on_all_slots_gets_all_channels_once() {
    run(|| async {
        let bed = Bed::new().await;
        let agent = bed.start().await;
        let spec = json!({"isolationMode": "Domain", "channel": {"allocationMode": "All"}});
        let domain = bed.compute_domain("team", "red", spec).await;
        bed.stub.borrow_mut().grant =
            Ok(Grant::Channel { channel: 1, domain: "exclusive-0".into(), channel_count: 16 });
        let config = json!({"apiVersion": names::COMPUTE_DOMAIN_API_VERSION, "kind": names::CHANNEL_CONFIG_KIND,
            "domainID": domain, "computeDomain": "red", "allocationMode": "All"});
        let slots: Vec<String> = (0..16).map(|i| format!("slot-{i}")).collect();
        let slots: Vec<&str> = slots.iter().map(String::as_str).collect();
        let claim = bed.claim_with("c", names::DRIVER, &slots, config).await;
        let ids = agent.prepare_one(&claim).await.unwrap();
        let minors: Vec<u64> = bed.inject(&ids).into_iter().map(|(_, _, minor)| minor).collect();
        assert_eq!(minors, (1..16).collect::<Vec<_>>());
    });
}

#[test]
fn issue_627_a_node_without_fabric_gives_no_channel_and_says_so() {
    run(|| async {
        let mut bed = Bed::new().await;
        bed.inventory.fabric = heddle_core::inventory::Fabric::None;
        bed.stub.borrow_mut().grant = Ok(Grant::NoFabric);
        let (agent, _, claim) = bed.start_with_claim().await;
        let ids = agent.prepare_one(&claim).await.unwrap();
        assert!(bed.inject(&ids).is_empty());
        let files = bed.cdi_files();
        let edits = &files.values().next().unwrap()["devices"][0]["containerEdits"];
        assert_eq!(edits, &json!({"env": ["HEDDLE_IMEX_CHANNEL=none"]}));
        agent.unprepare(&claim).await.unwrap();
        assert!(bed.cdi_files().is_empty());
    });
}

#[test]
fn gpus_are_answered_by_their_own_driver_and_v1beta1_is_the_same() {
    run(|| async {
        let bed = Bed::new().await;
        let agent = bed.start().await;
        let claim = bed.claim_with("c", names::GPU_DRIVER, &["gpu-1", "gpu-2"], json!({})).await;
        let channel = dial(agent.service(names::GPU_DRIVER)).await;
        let mut plugin = v1beta1::dra_plugin_client::DraPluginClient::new(channel);
        let key =
            v1beta1::Claim { namespace: claim.namespace.clone(), name: claim.name.clone(), uid: claim.uid.clone() };
        let request = v1beta1::NodePrepareResourcesRequest { claims: vec![key] };
        let answer = plugin.node_prepare_resources(request).await.unwrap().into_inner();
        let devices = &answer.claims[&claim.uid].devices;
        let ids: Vec<_> = devices.iter().flat_map(|device| device.cdi_device_ids.clone()).collect();
        assert_eq!(ids, ["nvidia.com/gpu=GPU-1", "nvidia.com/gpu=GPU-2"]);

        let wrong = agent.prepare_one(&claim).await.unwrap_err();
        assert!(wrong.contains("no device of driver compute-domain.nvidia.com"), "{wrong}");
        agent.unprepare_by(names::GPU_DRIVER, &claim).await.unwrap();
        assert!(bed.checkpoints().is_empty());
    });
}
