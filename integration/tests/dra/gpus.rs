//! Claims on whole GPUs, which the container toolkit describes.

use std::collections::BTreeSet;

use heddle_actors::dra::{Driver, Message};
use heddle_core::fault::{Fault, reason};
use heddle_core::names;
use heddle_proto::dra::v1::{Claim, NodePrepareResourceResponse};
use serde_json::{Value, json};

use crate::bed::{Agent, Bed, NODE, run};

async fn prepare_gpus(agent: &Agent, claim: &Claim) -> NodePrepareResourceResponse {
    agent.prepare_by(names::GPU_DRIVER, &[claim]).await.remove(&claim.uid).unwrap()
}

fn ids(answer: &NodePrepareResourceResponse) -> Vec<String> {
    assert_eq!(answer.error, "");
    answer.devices.iter().flat_map(|device| device.cdi_device_ids.clone()).collect()
}

/// What the kubelet will be told at the deadline, once the claim waits for the toolkit.
async fn missing(agent: &Agent, claim: &Claim) -> Fault {
    loop {
        let uid = claim.uid.clone();
        let asked = agent.server.ask(|reply| Message::Missing { driver: Driver::Gpu, uid, reply }).await;
        if let Ok(fault) = asked
            && fault.reason == reason::NO_TOOLKIT_ENTRY
        {
            return fault;
        }
        tokio::task::yield_now().await;
    }
}

#[test]
fn a_gpu_without_a_toolkit_entry_says_so_and_is_prepared_when_the_file_appears() {
    run(|| async {
        let bed = Bed::new().await;
        bed.toolkit(&["GPU-1"]);
        let agent = bed.start().await;
        let claim = bed.claim_with("c", names::GPU_DRIVER, &["gpu-1", "gpu-2"], json!({})).await;
        let steps = async {
            let fault = missing(&agent, &claim).await;
            let (fixed, dynamic) = (bed.paths.cdi_static(), bed.paths.cdi());
            for words in ["GPU-2", "nvidia-ctk cdi generate", fixed.to_str().unwrap(), dynamic.to_str().unwrap()] {
                assert!(fault.message.contains(words), "{fault}");
            }
            assert!(bed.checkpoints().is_empty(), "nothing is written before it can be answered");
            // The toolkit's service writes to the other folder, in its own form.
            let yaml =
                "cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices:\n- name: GPU-2\n  containerEdits: {env: [A=B]}\n";
            std::fs::write(dynamic.join("nvidia.yaml"), yaml).unwrap();
        };
        let (answer, ()) = futures::join!(prepare_gpus(&agent, &claim), steps);
        assert_eq!(ids(&answer), ["nvidia.com/gpu=GPU-1", "nvidia.com/gpu=GPU-2"]);
    });
}

#[test]
fn a_repeated_prepare_is_not_answered_with_what_the_toolkit_has_taken_away() {
    run(|| async {
        let bed = Bed::new().await;
        let agent = bed.start().await;
        let claim = bed.claim_with("c", names::GPU_DRIVER, &["gpu-3"], json!({})).await;
        assert_eq!(ids(&prepare_gpus(&agent, &claim).await), ["nvidia.com/gpu=GPU-3"]);
        // The kubelet restarts, and asks again.
        std::fs::remove_file(bed.paths.cdi_static().join("nvidia.json")).unwrap();
        bed.kill(agent).await;
        let agent = bed.start().await;
        let steps = async {
            assert!(missing(&agent, &claim).await.message.contains("GPU-3"));
            bed.toolkit(&["GPU-3"]);
        };
        let (answer, ()) = futures::join!(prepare_gpus(&agent, &claim), steps);
        assert_eq!(ids(&answer), ["nvidia.com/gpu=GPU-3"]);
    });
}

#[test]
fn a_claim_that_waits_for_the_toolkit_can_be_unprepared() {
    run(|| async {
        let bed = Bed::new().await;
        bed.toolkit(&[]);
        let agent = bed.start().await;
        let claim = bed.claim_with("c", names::GPU_DRIVER, &["gpu-0"], json!({})).await;
        let steps = async {
            missing(&agent, &claim).await;
            agent.unprepare_by(names::GPU_DRIVER, &claim).await.unwrap();
        };
        let (answer, ()) = futures::join!(prepare_gpus(&agent, &claim), steps);
        assert!(answer.error.contains("unprepared"), "{}", answer.error);
        assert!(bed.checkpoints().is_empty());
    });
}

fn config(domain: &str) -> Value {
    json!([{"source": "FromClaim", "requests": ["channel"], "opaque": {"driver": names::DRIVER, "parameters": {
        "apiVersion": names::COMPUTE_DOMAIN_API_VERSION, "kind": names::CHANNEL_CONFIG_KIND, "domainID": domain}}}])
}

#[test]
fn a_gpu_and_a_channel_in_one_claim_are_answered_by_two_drivers_and_undone_apart() {
    run(|| async {
        let bed = Bed::new().await;
        let agent = bed.start().await;
        let domain = bed.compute_domain("team", "green", json!({})).await;
        let exactly = |class: &str| json!({"deviceClassName": class, "allocationMode": "ExactCount", "count": 1});
        let requests = json!([{"name": "gpu", "exactly": exactly("gpu.nvidia.com")},
            {"name": "channel", "exactly": exactly(names::CHANNEL_DEVICE_CLASS)}]);
        let result = |request: &str, driver: &str, device: &str| json!({"request": request, "driver": driver, "pool": NODE, "device": device});
        let results = json!([result("gpu", names::GPU_DRIVER, "gpu-2"), result("channel", names::DRIVER, "slot-5")]);
        let claim = bed.claim_of("both", requests, json!({"results": results, "config": config(&domain)})).await;

        let gpu = prepare_gpus(&agent, &claim).await;
        assert_eq!(ids(&gpu), ["nvidia.com/gpu=GPU-2"]);
        assert_eq!(gpu.devices[0].request_names, ["gpu"]);
        let channel = agent.prepare(&[&claim]).await.remove(&claim.uid).unwrap();
        assert_eq!(channel.devices[0].request_names, ["channel"]);
        assert_eq!(bed.inject(&ids(&channel)).len(), 1);

        // Both say in the claim's status what they gave, and neither takes the other's word away.
        let shown = loop {
            let devices = bed.read_claim("both").await.status.unwrap().devices.unwrap_or_default();
            if devices.len() == 2 {
                break devices.into_iter().map(|device| device.device).collect::<BTreeSet<_>>();
            }
            tokio::task::yield_now().await;
        };
        assert_eq!(shown, ["gpu-2".to_owned(), "slot-5".to_owned()].into());

        agent.unprepare_by(names::GPU_DRIVER, &claim).await.unwrap();
        assert_eq!(bed.inject(&ids(&channel)).len(), 1, "the channel is still the pod's");
        agent.unprepare(&claim).await.unwrap();
        assert!(bed.checkpoints().is_empty() && bed.cdi_files().is_empty());
    });
}

#[test]
fn a_gpu_and_a_channel_in_two_claims_of_one_pod() {
    run(|| async {
        let bed = Bed::new().await;
        let (agent, _, channel) = bed.start_with_claim().await;
        let gpu = bed.claim_with("g", names::GPU_DRIVER, &["gpu-0"], json!({})).await;
        let (gpus, channels) = futures::join!(prepare_gpus(&agent, &gpu), agent.prepare_one(&channel));
        assert_eq!(ids(&gpus), ["nvidia.com/gpu=GPU-0"]);
        assert_eq!(bed.inject(&channels.unwrap()).len(), 1);
        agent.unprepare(&channel).await.unwrap();
        agent.unprepare_by(names::GPU_DRIVER, &gpu).await.unwrap();
        assert!(bed.checkpoints().is_empty());
    });
}
