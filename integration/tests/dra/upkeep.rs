//! What the agent keeps on disk for its claims, while somebody removes or replaces it.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use heddle_core::names;
use serde_json::json;

use crate::bed::{Bed, run};

/// Path of the one CDI file.
fn cdi_file(bed: &Bed) -> PathBuf {
    bed.paths.cdi().join(bed.cdi_files().into_keys().next().unwrap())
}

#[test]
fn case_20_a_wiped_cdi_file_is_put_back() {
    run(|| async {
        let bed = Bed::new().await;
        let (agent, _, claim) = bed.start_with_claim().await;
        let ids = agent.prepare_one(&claim).await.unwrap();
        let before = bed.cdi_files();
        std::fs::remove_file(cdi_file(&bed)).unwrap();
        agent.until(|| bed.cdi_files() == before).await;
        assert_eq!(bed.inject(&ids).len(), 1);
    });
}

#[test]
fn dra_example_249_the_file_of_a_running_claim_outlives_agent_and_directory() {
    run(|| async {
        let bed = Bed::new().await;
        let (agent, _, claim) = bed.start_with_claim().await;
        let ids = agent.prepare_one(&claim).await.unwrap();
        let before = bed.cdi_files();
        bed.kill(agent).await;
        std::fs::remove_file(bed.paths.cdi().join(before.keys().next().unwrap())).unwrap();

        // The kubelet prepares nothing again after a restart of the plugin.
        let agent = bed.start().await;
        assert_eq!(bed.cdi_files(), before);
        for _ in 0..3 {
            std::fs::remove_dir_all(bed.paths.cdi()).unwrap();
            agent.until(|| bed.paths.cdi().exists() && bed.cdi_files() == before).await;
            assert_eq!(std::fs::metadata(bed.paths.cdi()).unwrap().permissions().mode() & 0o777, 0o755);
        }
        let elsewhere = bed.paths.root.join("elsewhere");
        std::fs::rename(bed.paths.cdi(), &elsewhere).unwrap();
        agent.until(|| bed.paths.cdi().exists() && bed.cdi_files() == before).await;
        assert_eq!(bed.inject(&ids).len(), 1);
        agent.unprepare(&claim).await.unwrap();
        assert!(bed.cdi_files().is_empty());
    });
}

#[test]
fn a_cdi_directory_that_is_gone_is_made_by_the_prepare_that_needs_it() {
    run(|| async {
        let bed = Bed::new().await;
        let (agent, _, claim) = bed.start_with_claim().await;
        std::fs::remove_dir_all(bed.paths.cdi()).unwrap();
        let ids = agent.prepare_one(&claim).await.unwrap();
        assert_eq!(bed.inject(&ids).len(), 1);
        std::fs::remove_dir_all(bed.paths.cdi()).unwrap();
        agent.unprepare(&claim).await.unwrap();
        assert!(bed.checkpoints().is_empty());
    });
}

#[test]
fn whatever_is_put_in_the_place_of_a_cdi_file_gives_way_and_is_not_followed() {
    run(|| async {
        let bed = Bed::new().await;
        let (agent, _, claim) = bed.start_with_claim().await;
        agent.prepare_one(&claim).await.unwrap();
        let (before, path) = (bed.cdi_files(), cdi_file(&bed));
        let outside = bed.paths.root.join("outside");
        std::fs::create_dir(&outside).unwrap();
        std::fs::write(outside.join("file"), "theirs").unwrap();
        let put: [&dyn Fn(); 5] = [
            &|| std::fs::create_dir(&path).unwrap(),
            &|| {
                std::fs::create_dir(&path).unwrap();
                std::os::unix::fs::symlink(&outside, path.join("link")).unwrap();
            },
            &|| std::os::unix::fs::symlink(outside.join("file"), &path).unwrap(),
            &|| std::os::unix::fs::symlink(&outside, &path).unwrap(),
            &|| rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap(),
        ];
        for put in put {
            std::fs::remove_file(&path).unwrap();
            put();
            agent.until(|| path.symlink_metadata().is_ok_and(|found| found.is_file())).await;
            assert_eq!(bed.cdi_files(), before);
            assert_eq!(std::fs::read_to_string(outside.join("file")).unwrap(), "theirs");
        }
        // And where no event told of it.
        bed.kill(agent).await;
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        let agent = bed.start().await;
        assert_eq!(bed.cdi_files(), before);
        agent.unprepare(&claim).await.unwrap();
        assert!(bed.cdi_files().is_empty());
    });
}

#[test]
fn kubernetes_141433_a_repeated_prepare_answers_only_when_the_file_is_there() {
    run(|| async {
        let bed = Bed::new().await;
        let (agent, _, claim) = bed.start_with_claim().await;
        let ids = agent.prepare_one(&claim).await.unwrap();
        let path = cdi_file(&bed);
        // In one turn with the call: the watch has not seen it when the Prepare begins.
        std::fs::write(&path, r#"{"cdiVersion": "0.5.0"}"#).unwrap();
        assert_eq!(agent.prepare_one(&claim).await.unwrap(), ids);
        assert_eq!(bed.inject(&ids).len(), 1);
    });
}

#[test]
fn orphans_go_at_the_start_and_what_others_own_stays() {
    run(|| async {
        let bed = Bed::new().await;
        let (agent, _, claim) = bed.start_with_claim().await;
        agent.prepare_one(&claim).await.unwrap();
        let (before, path) = (bed.cdi_files(), cdi_file(&bed));
        bed.kill(agent).await;
        let name = path.file_name().unwrap().to_str().unwrap();
        // A second file of the same claim, one of a claim that exists nowhere, and a write that was cut off.
        let token = &name[name.len() - 37..name.len() - 5];
        let orphans = [
            name.replace(token, "00112233445566778899aabbccddeeff"),
            name.replace(&claim.uid, "11111111-2222-4333-8444-555555555555"),
            format!(".{name}.0011223344556677.tmp"),
        ];
        for orphan in &orphans {
            std::fs::copy(&path, bed.paths.cdi().join(orphan)).unwrap();
        }
        let foreign = ["nvidia.yaml", ".nvidia.yaml.77.tmp", "k8s.compute-domain.nvidia.com-claim_x.yaml"];
        for foreign in foreign {
            std::fs::write(bed.paths.cdi().join(foreign), "").unwrap();
        }
        let checkpoints = bed.paths.state().join("claims").join(names::DRIVER);
        std::fs::create_dir(checkpoints.join("lost+found")).unwrap();
        std::fs::write(checkpoints.join(".x.json.0011223344556677.tmp"), "half").unwrap();

        let agent = bed.start().await;
        agent.until(|| bed.cdi_files() == before).await;
        assert!(orphans.iter().all(|orphan| !bed.paths.cdi().join(orphan).exists()));
        assert!(foreign.iter().all(|foreign| bed.paths.cdi().join(foreign).exists()));
        let mut left: Vec<_> =
            std::fs::read_dir(&checkpoints).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, [format!("{}.json", claim.uid).as_str(), "lost+found"]);
    });
}

#[test]
fn a_state_directory_removed_under_a_running_agent_is_made_anew_with_what_claims_hold() {
    run(|| async {
        let bed = Bed::new().await;
        let (agent, domain, claim) = bed.start_with_claim().await;
        let ids = agent.prepare_one(&claim).await.unwrap();
        bed.enter(&[(&domain, 7)]).await;
        let before = bed.cdi_files();
        for _ in 0..2 {
            bed.stub.borrow_mut().restored = None;
            std::fs::remove_dir_all(bed.paths.state()).unwrap();
            agent.until(|| bed.stub.borrow().restored.is_some()).await;
            let restored = bed.stub.borrow_mut().restored.take().unwrap();
            assert_eq!((restored[0].claim_uid.as_str(), restored[0].channel), (claim.uid.as_str(), 7));
        }
        assert_eq!((bed.cdi_files(), bed.checkpoints().len()), (before.clone(), 1));
        let mode = std::fs::metadata(bed.paths.state()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700, "for the agent's eyes only");
        assert_eq!(agent.prepare_one(&claim).await.unwrap(), ids);
        let other = bed.claim("other", &domain).await;
        std::fs::remove_dir_all(bed.paths.state()).unwrap();
        agent.prepare_one(&other).await.unwrap();
        for claim in [&claim, &other] {
            agent.unprepare(claim).await.unwrap();
        }
        assert_eq!(bed.cdi_files(), [].into());
        assert_eq!(bed.checkpoints(), Vec::<PathBuf>::new());
        assert_eq!(bed.stub.borrow().held, [].into());
    });
}

#[test]
fn issue_1100_an_empty_checkpoint_of_a_running_claim_is_told_and_the_claim_keeps_its_name_and_channel() {
    run(|| async {
        let bed = Bed::new().await;
        let (agent, _, claim) = bed.start_with_claim().await;
        let ids = agent.prepare_one(&claim).await.unwrap();
        let (before, checkpoint) = (bed.cdi_files(), bed.checkpoints().remove(0));
        std::fs::write(&checkpoint, "").unwrap();
        assert_eq!(agent.prepare_one(&claim).await.unwrap(), ids);
        assert_eq!((bed.cdi_files(), bed.checkpoints().len()), (before, 1));
        assert!(bed.paths.state().join("quarantine").join(checkpoint.file_name().unwrap()).exists());
        let events = || bed.server.objects("", "events");
        agent.until(|| events().iter().any(|event| event["reason"] == "CheckpointCorrupt")).await;
        let event = events().into_iter().find(|event| event["reason"] == "CheckpointCorrupt").unwrap();
        assert_eq!(event["involvedObject"]["kind"], "Node");
        assert!(event["message"].as_str().unwrap().contains(&claim.uid), "{event}");

        std::fs::write(&checkpoint, "").unwrap();
        agent.unprepare(&claim).await.unwrap();
        assert!(bed.cdi_files().is_empty() && bed.checkpoints().is_empty() && bed.stub.borrow().held.is_empty());
    });
}

#[test]
fn issue_1259_whatever_is_in_the_place_of_a_checkpoint_stops_no_start() {
    run(|| async {
        let bed = Bed::new().await;
        let (mut agent, domain, claim) = bed.start_with_claim().await;
        let ids = agent.prepare_one(&claim).await.unwrap();
        bed.enter(&[(&domain, 7)]).await;
        let (before, path) = (bed.cdi_files(), bed.checkpoints().remove(0));
        let put: [&dyn Fn(); 4] = [
            &|| std::fs::create_dir_all(path.join("deep")).unwrap(),
            &|| std::os::unix::fs::symlink("/etc/passwd", &path).unwrap(),
            &|| rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap(),
            &|| std::fs::write(&path, vec![0; 4096]).unwrap(),
        ];
        for put in put {
            bed.kill(agent).await;
            std::fs::remove_file(&path).unwrap();
            put();
            bed.stub.borrow_mut().restored = None;
            agent = bed.start().await;
            agent.until(|| bed.stub.borrow().restored.is_some()).await;
            let restored = bed.stub.borrow_mut().restored.take().unwrap();
            assert_eq!((restored.len(), restored[0].channel), (1, 7));
            assert_eq!(bed.cdi_files(), before);
        }
        assert_eq!(agent.prepare_one(&claim).await.unwrap(), ids);
    });
}

#[test]
fn issue_840_issue_1278_what_is_left_of_a_claim_that_exists_no_more_is_removed() {
    run(|| async {
        let bed = Bed::new().await;
        let (agent, domain, claim) = bed.start_with_claim().await;
        agent.prepare_one(&claim).await.unwrap();
        bed.enter(&[(&domain, 7)]).await;
        bed.kill(agent).await;
        std::fs::write(bed.checkpoints().remove(0), "{").unwrap();
        let api = kube::Api::<k8s_openapi::api::resource::v1::ResourceClaim>::namespaced(bed.client.clone(), "team");
        api.delete(&claim.name, &kube::api::DeleteParams::default()).await.unwrap();
        // Another of the same name: only the UID counts.
        bed.claim(&claim.name, &domain).await;

        bed.stub.borrow_mut().restored = None;
        let agent = bed.start().await;
        agent.until(|| bed.stub.borrow().restored.is_some()).await;
        assert_eq!(bed.stub.borrow().restored, Some(vec![]));
        assert!(bed.cdi_files().is_empty() && bed.checkpoints().is_empty());
        agent.unprepare(&claim).await.unwrap();
    });
}

#[test]
fn issue_951_after_a_reboot_a_claim_whose_checkpoint_is_damaged_gets_the_new_major() {
    run(|| async {
        let bed = Bed::new().await;
        let (agent, domain, claim) = bed.start_with_claim().await;
        agent.prepare_one(&claim).await.unwrap();
        bed.enter(&[(&domain, 7)]).await;
        bed.kill(agent).await;
        // The power cut that ended the boot, and a CDI directory that is no tmpfs.
        let path = bed.checkpoints().remove(0);
        std::fs::write(&path, &std::fs::read(&path).unwrap()[..40]).unwrap();
        bed.boot("boot-2", 511);
        bed.stub.borrow_mut().restored = None;
        let agent = bed.start().await;
        agent.until(|| bed.stub.borrow().restored.is_some()).await;
        let ids = agent.prepare_one(&claim).await.unwrap();
        assert_eq!(bed.inject(&ids), [("/dev/nvidia-caps-imex-channels/channel7".to_owned(), 511, 7)]);
        assert_eq!(bed.cdi_files().len(), 1);
    });
}

#[test]
fn slurm_201f7e04_a_claim_whose_prepare_fails_has_no_device_that_a_container_could_get() {
    run(|| async {
        let bed = Bed::new().await;
        let (agent, domain, claim) = bed.start_with_claim().await;
        // Every error path's effect is looked at, not its message: the write of the CDI file fails, then the state's.
        let cdi = bed.paths.cdi();
        let away = bed.paths.root.join("away");
        std::fs::rename(&cdi, &away).unwrap();
        std::fs::write(&cdi, "no directory").unwrap();
        assert!(agent.prepare_one(&claim).await.is_err());
        assert!(std::fs::read_dir(&away).unwrap().next().is_none(), "there is no file, so there is no device");
        assert_eq!(bed.stub.borrow().held.get(&claim.uid), None);
        std::fs::remove_file(&cdi).unwrap();
        std::fs::rename(&away, &cdi).unwrap();

        let claims = bed.paths.state().join("claims");
        let other = bed.claim("other", &domain).await;
        std::fs::rename(&claims, &away).unwrap();
        std::fs::write(&claims, "no directory").unwrap();
        assert!(agent.prepare_one(&other).await.is_err());
        assert!(bed.cdi_files().is_empty());
        assert_eq!(bed.stub.borrow().held.get(&other.uid), None, "nothing tells of it, so nothing would give it back");
        std::fs::remove_file(&claims).unwrap();
        std::fs::rename(&away, &claims).unwrap();
        for claim in [&claim, &other] {
            assert_eq!(bed.inject(&agent.prepare_one(claim).await.unwrap()).len(), 1);
            agent.unprepare(claim).await.unwrap();
        }
        assert!(bed.cdi_files().is_empty() && bed.checkpoints().is_empty() && bed.stub.borrow().held.is_empty());
    });
}

#[test]
fn the_state_directory_holds_what_the_damage_tests_know_of() {
    run(|| async {
        let bed = Bed::new().await;
        let (agent, _, claim) = bed.start_with_claim().await;
        let gpu = bed.claim_with("g", names::GPU_DRIVER, &["gpu-1"], json!({})).await;
        agent.prepare_one(&claim).await.unwrap();
        agent.prepare_by(names::GPU_DRIVER, &[&gpu]).await;
        let mut found: Vec<String> = Vec::new();
        let mut folders = vec![bed.paths.state()];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
                found.push(entry.strip_prefix(bed.paths.state()).unwrap().to_str().unwrap().to_owned());
                if entry.is_dir() {
                    folders.push(entry);
                }
            }
        }
        found.sort();
        let (slots, gpus) = (names::DRIVER, names::GPU_DRIVER);
        let expected = [
            "claims".into(),
            format!("claims/{slots}"),
            format!("claims/{slots}/{}.json", claim.uid),
            format!("claims/{gpus}"),
            format!("claims/{gpus}/{}.json", gpu.uid),
            "quarantine".into(),
        ];
        assert_eq!(found, expected, "a new kind of file belongs into the damage tests");
    });
}
