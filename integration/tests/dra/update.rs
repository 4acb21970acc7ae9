//! A rolling update: two agents on one node, of which one acts for it.

use std::rc::Rc;

use heddle_integration::kubelet::{Kubelet, KubeletOptions, Limits};
use heddle_proto::dra::v1::Claim;
use serde_json::json;

use crate::bed::{Agent, Bed, NODE, run};

/// A call that goes on beside the test, and has reached its agent.
async fn begin_prepare(agent: &Rc<Agent>, claim: &Claim) -> tokio::task::JoinHandle<Result<Vec<String>, String>> {
    let (agent, claim) = (agent.clone(), claim.clone());
    tokio::task::spawn_local(async move { agent.prepare_one(&claim).await })
}

#[test]
fn case_40_the_new_agent_answers_what_is_prepared_and_writes_nothing() {
    run(|| async {
        let bed = Bed::new().await;
        let (old, _, claim) = bed.start_with_claim().await;
        let ids = old.prepare_one(&claim).await.unwrap();
        let (files, checkpoints) = (bed.cdi_files(), bed.checkpoints());
        let (new, _turn) = bed.start_beside().await;
        bed.api_away();
        bed.stub.borrow_mut().lost = true;
        assert_eq!(new.prepare_one(&claim).await, Ok(ids), "without a word to the allocator, which is not there yet");
        assert_eq!((bed.cdi_files(), bed.checkpoints()), (files, checkpoints));
    });
}

#[test]
fn case_40_a_prepare_that_waits_for_the_old_agent_s_end_goes_on_after_it() {
    run(|| async {
        let bed = Bed::new().await;
        let (old, domain, first) = bed.start_with_claim().await;
        old.prepare_one(&first).await.unwrap();
        let second = bed.claim("c2", &domain).await;
        let (new, turn) = bed.start_beside().await;
        let new = Rc::new(new);
        let waiting = begin_prepare(&new, &second).await;
        // What is prepared is answered while the other waits: both calls have come by then.
        new.prepare_one(&first).await.unwrap();
        assert_eq!((bed.stub.borrow().enters, waiting.is_finished()), (1, false));
        bed.kill(old).await;
        turn.begin();
        assert_eq!(bed.inject(&waiting.await.unwrap().unwrap()).len(), 1);
        assert_eq!(bed.stub.borrow().held.len(), 2);
    });
}

#[test]
fn an_unprepare_is_done_by_the_agent_that_acts_for_the_node() {
    run(|| async {
        let bed = Bed::new().await;
        let (old, _, claim) = bed.start_with_claim().await;
        old.prepare_one(&claim).await.unwrap();
        let files = bed.cdi_files();
        let (new, turn) = bed.start_beside().await;
        let new = Rc::new(new);
        let (asked, of) = (new.clone(), claim.clone());
        let waiting = tokio::task::spawn_local(async move { asked.unprepare(&of).await });
        // The old agent would put back a file that another one takes away.
        new.prepare_one(&claim).await.unwrap();
        assert_eq!(bed.cdi_files(), files);
        bed.kill(old).await;
        turn.begin();
        waiting.await.unwrap().unwrap();
        assert!(bed.cdi_files().is_empty() && bed.checkpoints().is_empty() && bed.stub.borrow().held.is_empty());
    });
}

#[test]
fn a_file_that_was_lost_in_between_is_put_back_by_the_agent_that_acts() {
    run(|| async {
        let bed = Bed::new().await;
        let (old, _, claim) = bed.start_with_claim().await;
        let ids = old.prepare_one(&claim).await.unwrap();
        let files = bed.cdi_files();
        let (new, turn) = bed.start_beside().await;
        bed.kill(old).await;
        std::fs::remove_file(bed.paths.cdi().join(files.keys().next().unwrap())).unwrap();
        let new = Rc::new(new);
        let waiting = begin_prepare(&new, &claim).await;
        turn.begin();
        assert_eq!(waiting.await.unwrap(), Ok(ids));
        assert_eq!(bed.cdi_files(), files);
    });
}

#[test]
fn cases_40_and_41_the_kubelet_s_pods_run_while_agents_come_and_go() {
    run(|| async {
        let bed = Bed::new().await;
        let options = KubeletOptions::new(bed.client.clone(), NODE, bed.paths.clone(), "127.10.0.1");
        let kubelet = Kubelet::start(options.with_limits(Limits::brisk()));
        let running = async |pods: usize| {
            while kubelet.containers().len() != pods {
                tokio::time::sleep(std::time::Duration::from_millis(2)).await;
            }
        };
        let old = bed.start().await;
        let domain = bed.compute_domain("team", "green", json!({})).await;
        bed.claim("c1", &domain).await;
        bed.pod("p1", "c1").await;
        running(1).await;

        // One that dies while it stands by: the kubelet has called it, and comes back to the old one.
        let before = kubelet.counts();
        let (new, _) = bed.start_beside().await;
        while kubelet.counts().registrations == before.registrations {
            tokio::time::sleep(std::time::Duration::from_millis(2)).await;
        }
        bed.claim("c2", &domain).await;
        bed.pod("p2", "c2").await;
        // What is left of it in this process are its open connections, so the kubelet has to see it go.
        let gone =
            new.registrations().into_iter().filter(|path| path.to_string_lossy().contains(&new.settings.pod_uid));
        gone.for_each(|path| std::fs::remove_file(path).unwrap());
        new.scope.stop();
        running(2).await;

        // One that takes over.
        let (_new, turn) = bed.start_beside().await;
        bed.claim("c3", &domain).await;
        bed.pod("p3", "c3").await;
        bed.kill(old).await;
        turn.begin();
        running(3).await;
        assert_eq!(bed.cdi_files().len(), 3);
    });
}
