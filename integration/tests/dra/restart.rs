//! The agent dies, the node reboots, files are damaged.

use std::collections::BTreeMap;

use heddle_core::fault::Class;
use heddle_proto::dra::v1::Claim;
use serde_json::{Value, json};

use crate::bed::{Agent, Bed, run};

/// The agent has told that the claim holds its channel, answers for it as before, and can undo it.
async fn holds_again(bed: &Bed, agent: &Agent, claim: &Claim, files: BTreeMap<String, Value>) {
    let restored = bed.stub.borrow_mut().restored.take().unwrap();
    assert_eq!((restored[0].claim_uid.as_str(), restored[0].channel), (claim.uid.as_str(), 7));
    let ids = agent.prepare_one(claim).await.unwrap();
    assert_eq!((bed.inject(&ids).len(), bed.cdi_files()), (1, files));
    agent.unprepare(claim).await.unwrap();
    assert!(bed.cdi_files().is_empty() && bed.checkpoints().is_empty());
}

#[test]
fn case_18_a_new_agent_answers_from_the_checkpoint_and_tells_the_allocator_first() {
    run(|| async {
        let bed = Bed::new().await;
        let (agent, _, claim) = bed.start_with_claim().await;
        let ids = agent.prepare_one(&claim).await.unwrap();
        let files = bed.cdi_files();
        bed.kill(agent).await;

        bed.api_away();
        let agent = bed.start().await;
        let restored = bed.stub.borrow_mut().restored.take().unwrap();
        assert_eq!((restored[0].claim_uid.as_str(), restored[0].channel), (claim.uid.as_str(), 7));
        assert_eq!(agent.prepare_one(&claim).await.unwrap(), ids);
        assert_eq!((bed.cdi_files(), bed.requests()), (files, vec![]));
        agent.unprepare(&claim).await.unwrap();
        assert!(bed.cdi_files().is_empty() && bed.checkpoints().is_empty());
    });
}

#[test]
fn case_19_after_a_reboot_the_cdi_file_has_the_new_major() {
    run(|| async {
        let bed = Bed::new().await;
        let (agent, _, claim) = bed.start_with_claim().await;
        agent.prepare_one(&claim).await.unwrap();
        bed.kill(agent).await;

        bed.boot("boot-2", 511);
        let agent = bed.start().await;
        assert!(bed.cdi_files().values().all(|spec| !spec.to_string().contains("234")));
        let ids = agent.prepare_one(&claim).await.unwrap();
        assert_eq!(bed.inject(&ids)[0].1, 511);
    });
}

#[test]
fn issue_1066_a_driver_that_is_loaded_anew_gives_the_files_its_new_major() {
    run(|| async {
        let bed = Bed::new().await;
        let (agent, _, claim) = bed.start_with_claim().await;
        let ids = agent.prepare_one(&claim).await.unwrap();
        bed.boot("boot-1", 300);
        let mut inventory = bed.inventory.clone();
        inventory.driver_version = "580.65.06".into();
        agent.server.tell(heddle_actors::dra::Message::Inventory(inventory));
        agent.until(|| bed.inject(&ids)[0].1 == 300).await;
        bed.kill(agent).await;

        bed.boot("boot-1", 301);
        let agent = bed.start().await;
        assert_eq!(bed.inject(&ids)[0].1, 301);
        assert_eq!(agent.prepare_one(&claim).await.unwrap(), ids);
    });
}

#[test]
fn issue_839_a_claim_of_an_earlier_boot_that_is_gone_is_undone() {
    run(|| async {
        let bed = Bed::new().await;
        let agent = bed.start().await;
        let domain = bed.compute_domain("team", "green", json!({})).await;
        let (gone, kept) = (bed.claim("gone", &domain).await, bed.claim("kept", &domain).await);
        agent.prepare_one(&gone).await.unwrap();
        agent.prepare_one(&kept).await.unwrap();
        bed.kill(agent).await;
        let api = kube::Api::<k8s_openapi::api::resource::v1::ResourceClaim>::namespaced(bed.client.clone(), "team");
        api.delete("gone", &kube::api::DeleteParams::default()).await.unwrap();

        let agent = bed.start().await;
        tokio::task::yield_now().await;
        assert_eq!(bed.checkpoints().len(), 2, "in the same boot its containers may still run");
        bed.kill(agent).await;
        bed.boot("boot-2", 511);
        let agent = bed.start().await;
        agent.until(|| bed.checkpoints().len() == 1).await;
        agent.until(|| !bed.stub.borrow().held.contains_key(&gone.uid)).await;
        agent.prepare_one(&kept).await.unwrap();
    });
}

#[test]
fn issue_1080_a_corrupt_checkpoint_is_put_aside_and_made_anew_from_the_cdi_file_and_the_node_s_object() {
    run(|| async {
        let bed = Bed::new().await;
        let (agent, domain, claim) = bed.start_with_claim().await;
        agent.prepare_one(&claim).await.unwrap();
        bed.kill(agent).await;
        let path = bed.checkpoints().remove(0);
        let bytes = std::fs::read(&path).unwrap();
        std::fs::write(&path, &bytes[..bytes.len() - 9]).unwrap();
        bed.enter(&[(&domain, 7)]).await;
        bed.stub.borrow_mut().restored = None;

        let files = bed.cdi_files();
        bed.api_away();
        let agent = bed.start().await;
        assert!(bed.paths.state().join("quarantine").join(path.file_name().unwrap()).exists());
        assert_eq!(bed.stub.borrow().restored, None, "while it is not known what the claim holds, nothing may be left");
        bed.heal();
        agent.until(|| bed.stub.borrow().restored.is_some()).await;
        holds_again(&bed, &agent, &claim, files).await;
    });
}

#[test]
fn a_deleted_checkpoint_is_made_anew_from_the_cdi_file_and_the_node_s_object() {
    run(|| async {
        let bed = Bed::new().await;
        let (agent, domain, claim) = bed.start_with_claim().await;
        agent.prepare_one(&claim).await.unwrap();
        bed.kill(agent).await;
        bed.enter(&[(&domain, 7)]).await;
        std::fs::remove_file(bed.checkpoints().remove(0)).unwrap();
        bed.stub.borrow_mut().restored = None;

        let files = bed.cdi_files();
        let agent = bed.start().await;
        agent.until(|| bed.stub.borrow().restored.is_some()).await;
        holds_again(&bed, &agent, &claim, files).await;
    });
}

#[test]
fn issue_1129_a_newer_release_s_checkpoint_is_left_alone_and_its_channel_stays_held() {
    run(|| async {
        let bed = Bed::new().await;
        let (agent, domain, claim) = bed.start_with_claim().await;
        agent.prepare_one(&claim).await.unwrap();
        bed.kill(agent).await;
        bed.enter(&[(&domain, 7)]).await;
        let path = bed.checkpoints().remove(0);
        std::fs::write(&path, br#"{"version":99}"#).unwrap();
        bed.stub.borrow_mut().restored = None;

        let files = bed.cdi_files();
        let agent = bed.start().await;
        agent.until(|| bed.stub.borrow().restored.is_some()).await;
        let restored = bed.stub.borrow_mut().restored.take().unwrap();
        assert_eq!((restored[0].claim_uid.as_str(), restored[0].channel), (claim.uid.as_str(), 7));
        assert!(agent.prepare_one(&claim).await.unwrap_err().contains("version 99"));
        assert!(agent.unprepare(&claim).await.unwrap_err().contains("update the agent"));
        assert_eq!((std::fs::read(&path).unwrap(), bed.cdi_files()), (br#"{"version":99}"#.to_vec(), files));
    });
}

#[test]
fn an_agent_killed_anywhere_in_prepare_or_unprepare_converges() {
    run(|| async {
        let bed = Bed::new().await;
        let domain = bed.compute_domain("team", "green", json!({})).await;
        for turns in 0..40 {
            let claim = bed.claim(&format!("c{turns}"), &domain).await;
            let agent = bed.start().await;
            cut_off(turns, agent.prepare_one(&claim)).await;
            bed.kill(agent).await;
            // A write that was with the disk when the process was killed may still happen.
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;

            let agent = bed.start().await;
            let ids = agent.prepare_one(&claim).await.unwrap();
            assert_eq!((bed.inject(&ids).len(), bed.cdi_files().len(), bed.checkpoints().len()), (1, 1, 1));
            assert_eq!(bed.stub.borrow().held.keys().collect::<Vec<_>>(), [&claim.uid]);
            cut_off(turns, agent.unprepare(&claim)).await;
            bed.kill(agent).await;
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;

            let agent = bed.start().await;
            // The real allocator compares with what it was told at start; what nobody holds is left.
            let restored = bed.stub.borrow_mut().restored.take().unwrap();
            bed.stub.borrow_mut().held.retain(|uid, _| restored.iter().any(|claim| claim.claim_uid == *uid));
            agent.unprepare(&claim).await.unwrap();
            agent.until(|| bed.cdi_files().is_empty() && bed.checkpoints().is_empty()).await;
            assert!(bed.stub.borrow().held.is_empty());
            bed.kill(agent).await;
        }
    });
}

/// Lets the call go on for so many turns of the scheduler.
async fn cut_off<T>(turns: usize, call: impl Future<Output = T>) {
    tokio::select! {
        biased;
        _ = call => {}
        () = async { for _ in 0..turns { tokio::task::yield_now().await } } => {}
    }
}

#[test]
fn a_folder_that_is_missing_ends_the_process_with_a_sentence() {
    run(|| async {
        let bed = Bed::new().await;
        let other = Bed::new().await;
        for (bed, missing, flag) in
            [(&bed, bed.paths.cdi(), "--cdi-dir"), (&other, other.paths.registry(), "--kubelet-registry-dir")]
        {
            std::fs::remove_dir_all(missing).unwrap();
            let fault = first_fault(bed, bed.settings()).await;
            assert_eq!(fault.class, Class::Fatal);
            assert!(fault.message.contains(flag) && fault.message.contains("does not exist"), "{fault}");
        }
    });
}

async fn first_fault(bed: &Bed, settings: heddle_actors::dra::DraSettings) -> heddle_core::fault::Fault {
    let root = bed.runtime.root();
    tokio::select! {
        cause = root.ended() => cause.unwrap(),
        _ = bed.start_with(settings) => panic!("it started"),
    }
}

#[test]
fn issue_1162_a_prepare_without_reservation_is_refused() {
    run(|| async {
        let bed = Bed::new().await;
        let agent = bed.start().await;
        let domain = bed.compute_domain("team", "green", json!({})).await;
        let claim: Claim = bed.claim("c", &domain).await;
        agent.prepare_one(&claim).await.unwrap();
        agent.unprepare(&claim).await.unwrap();
        let api = kube::Api::<k8s_openapi::api::resource::v1::ResourceClaim>::namespaced(bed.client.clone(), "team");
        let patch = kube::api::Patch::Merge(json!({"status": {"reservedFor": null}}));
        api.patch_status("c", &kube::api::PatchParams::default(), &patch).await.unwrap();
        let error = agent.prepare_one(&claim).await.unwrap_err();
        assert!(error.contains("not reserved"), "{error}");
        assert!(bed.cdi_files().is_empty() && bed.stub.borrow().held.is_empty());
    });
}
