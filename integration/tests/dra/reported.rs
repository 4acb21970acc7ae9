//! What users of existing systems reported about Prepare and Unprepare; numbers as in the threads.

use heddle_core::claim::Grant;
use heddle_core::fault::{Fault, reason};
use serde_json::json;

use crate::bed::{Bed, run};

#[test]
fn issue_1162_a_prepare_that_comes_after_the_unprepare_leaks_nothing() {
    run(|| async {
        let bed = Bed::new().await;
        let (agent, _, claim) = bed.start_with_claim().await;
        agent.prepare_one(&claim).await.unwrap();
        agent.unprepare(&claim).await.unwrap();
        // The pod is gone, and so is the reservation; the stale call comes late, also to the next agent.
        bed.unreserve("c").await;
        assert!(agent.prepare_one(&claim).await.unwrap_err().contains("not reserved"));
        bed.kill(agent).await;
        let agent = bed.start().await;
        assert!(agent.prepare_one(&claim).await.unwrap_err().contains("not reserved"));
        assert!(bed.cdi_files().is_empty() && bed.checkpoints().is_empty() && bed.stub.borrow().held.is_empty());
    });
}

#[test]
fn issue_641_the_next_claim_is_prepared_before_the_last_one_is_undone_and_the_channel_stays() {
    run(|| async {
        let bed = Bed::new().await;
        let (agent, domain, old) = bed.start_with_claim().await;
        let first = bed.inject(&agent.prepare_one(&old).await.unwrap());
        let new = bed.claim("c2", &domain).await;
        let ids = agent.prepare_one(&new).await.unwrap();
        agent.unprepare(&old).await.unwrap();
        assert_eq!(bed.inject(&ids), first);
        assert_eq!(bed.stub.borrow().held.keys().collect::<Vec<_>>(), [&new.uid]);
    });
}

#[test]
fn issue_1351_a_permanent_error_is_said_at_once_and_a_retryable_one_is_waited_for() {
    run(|| async {
        let bed = Bed::new().await;
        let agent = bed.start().await;
        let nowhere = bed.claim("nowhere", "11111111-2222-4333-8444-555555555555").await;
        // A paused clock goes on to the next timer when all wait: what was waited for would end with the deadline's words.
        tokio::time::pause();
        let refused = agent.prepare_one(&nowhere).await.unwrap_err();
        tokio::time::resume();
        assert!(refused.starts_with("there is no ComputeDomain with UID 1111"), "{refused}");
    });
}

#[test]
fn a_claim_missing_from_the_reply_none_of_whatever_the_call_names_is() {
    run(|| async {
        let bed = Bed::new().await;
        let (agent, domain, good) = bed.start_with_claim().await;
        let other = bed.claim("other", &domain).await;
        let unknown =
            heddle_proto::dra::v1::Claim { uid: "22222222-2222-4333-8444-555555555555".into(), ..good.clone() };
        let empty = heddle_proto::dra::v1::Claim::default();
        let answers = agent.prepare(&[&good, &unknown, &empty, &other]).await;
        let failed: Vec<bool> =
            [&good, &unknown, &empty, &other].map(|claim| !answers[&claim.uid].error.is_empty()).into();
        assert_eq!(failed, [false, true, true, false]);
    });
}

/// slurm 201f7e04: an error path freed the channel and reported success. What counts is what a container could open.
#[test]
fn slurm_2026_03_and_cve_2024_42511_after_an_error_at_any_point_no_device_is_left_and_none_is_answered() {
    run(|| async {
        for break_it in ["grant", "number", "cdi", "checkpoint", "claim", "fabric"] {
            let mut bed = Bed::new().await;
            let fault = Fault::retryable(reason::CHANNELS_EXHAUSTED, "no free IMEX channel");
            match break_it {
                "grant" => bed.stub.borrow_mut().grant = Err(fault),
                "number" => {
                    bed.stub.borrow_mut().grant =
                        Ok(Grant::Channel { channel: 2048, domain: "shared-0".into(), channel_count: 2048 });
                }
                "fabric" => {
                    bed.inventory.fabric = heddle_core::inventory::Fabric::Unhealthy("degraded".into());
                }
                _ => {}
            }
            let (agent, domain, mut claim) = bed.start_with_claim().await;
            let blocked = match break_it {
                "cdi" => Some(bed.paths.cdi()),
                "checkpoint" => Some(bed.paths.state().join("claims").join(heddle_core::names::DRIVER)),
                _ => None,
            };
            if let Some(folder) = &blocked {
                std::fs::remove_dir_all(folder).unwrap();
                std::fs::write(folder, "no folder").unwrap();
            }
            if break_it == "claim" {
                claim.uid = "22222222-2222-4333-8444-555555555555".into();
            }
            let answer = agent.prepare(&[&claim]).await.remove(&claim.uid).unwrap();
            assert!(!answer.error.is_empty() && answer.devices.is_empty(), "{break_it}: {answer:?}");
            if let Some(folder) = &blocked {
                std::fs::remove_file(folder).unwrap();
                std::fs::create_dir(folder).unwrap();
            }
            // Whatever a failed write has left is undone by the Unprepare that the kubelet sends for it.
            agent.unprepare(&claim).await.unwrap();
            assert!(bed.cdi_files().is_empty() && bed.checkpoints().is_empty(), "{break_it}");
            assert!(!bed.stub.borrow().held.values().any(|held| *held == domain), "{break_it}");
            bed.kill(agent).await;
        }
    });
}

#[test]
fn nvcf_1572_an_idle_claim_asks_nothing_of_the_api() {
    run(|| async {
        let bed = Bed::new().await;
        let (agent, _, claim) = bed.start_with_claim().await;
        agent.prepare_one(&claim).await.unwrap();
        let shown = || {
            bed.server.objects("resource.k8s.io", "resourceclaims").iter().any(|c| c["status"]["devices"].is_array())
        };
        agent.until(shown).await;
        bed.requests();
        tokio::time::pause();
        tokio::time::advance(std::time::Duration::from_secs(45)).await;
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        tokio::time::resume();
        assert_eq!(bed.requests(), []);
    });
}

#[test]
fn issue_814_every_refusal_is_one_sentence_that_names_its_object() {
    run(|| async {
        let bed = Bed::new().await;
        let agent = bed.start().await;
        let domain = bed.compute_domain("team", "green", json!({})).await;
        let config = json!({"apiVersion": heddle_core::names::COMPUTE_DOMAIN_API_VERSION,
            "kind": heddle_core::names::CHANNEL_CONFIG_KIND, "domainID": domain, "computeDomain": "blue"});
        let wrong_name = bed.claim_with("wrong", heddle_core::names::DRIVER, &["slot-1"], config).await;
        let good = bed.claim("good", &domain).await;
        for known in [false, true] {
            if known {
                agent.prepare_one(&good).await.unwrap();
            }
            let refused = agent.prepare_one(&wrong_name).await.unwrap_err();
            assert!(refused.contains("team") && !refused.contains('\n'), "known {known}: {refused}");
        }
    });
}

#[test]
fn kubernetes_141433_a_repeated_prepare_is_answered_when_the_file_it_names_is_there_again() {
    run(|| async {
        let bed = Bed::new().await;
        let (agent, _, claim) = bed.start_with_claim().await;
        let ids = agent.prepare_one(&claim).await.unwrap();
        let files = bed.cdi_files();
        for name in files.keys() {
            std::fs::remove_file(bed.paths.cdi().join(name)).unwrap();
        }
        assert_eq!(agent.prepare_one(&claim).await, Ok(ids));
        assert_eq!(bed.cdi_files(), files);
    });
}

#[test]
fn dra_example_249_a_new_agent_puts_back_what_was_lost_without_a_call_of_the_kubelet() {
    run(|| async {
        let bed = Bed::new().await;
        let (agent, _, claim) = bed.start_with_claim().await;
        agent.prepare_one(&claim).await.unwrap();
        let files = bed.cdi_files();
        bed.kill(agent).await;
        for name in files.keys() {
            std::fs::remove_file(bed.paths.cdi().join(name)).unwrap();
        }
        let _agent = bed.start().await;
        assert_eq!(bed.cdi_files(), files, "before the sockets listen");
    });
}
