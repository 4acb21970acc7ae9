//! What stops an uninstall (NVIDIA/gpu-operator 2571, life-cycle case 36).

use heddle_actors::in_use::in_use;
use heddle_core::uninstall::InUse;
use heddle_integration::api::{ApiServer, Options};
use serde_json::json;

use crate::{Bed, with};

#[tokio::test]
async fn gpu_operator_2571_compute_domains_and_allocated_claims_stop_an_uninstall() {
    let bed = Bed::new().await;
    let look = async |gpus| in_use(bed.server.client(), gpus).await.unwrap();
    assert_eq!(look(true).await, InUse::default());

    let cd = json!({
        "apiVersion": "resource.nvidia.com/v1beta1", "kind": "ComputeDomain",
        "metadata": {"namespace": "default", "name": "green"},
        "spec": {"numNodes": 0, "channel": {"resourceClaimTemplate": {"name": "green-channel"}}},
    });
    let cd = bed.admin().create(cd).await.unwrap();
    let claim = json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"namespace": "default", "name": "gpus"},
        "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "gpu.nvidia.com"}}]}},
    });
    let claim = bed.admin().create(claim).await.unwrap();
    assert!(look(true).await.claims.is_empty(), "nothing is allocated to it");
    let result = json!({"request": "r", "driver": "gpu.nvidia.com", "pool": "n1", "device": "gpu-0"});
    let allocated = json!({"status": {"allocation": {"devices": {"results": [result]}}}});
    bed.admin().replace_status(with(claim, allocated)).await.unwrap();
    let expected = InUse { compute_domains: vec!["default/green".into()], claims: vec!["default/gpus".into()] };
    assert_eq!(look(true).await, expected);
    assert!(look(false).await.claims.is_empty(), "GPUs are another driver's");
    bed.admin().delete(&cd).await.unwrap();
    assert!(look(false).await.refusal().is_none());
}

#[tokio::test]
async fn without_the_crds_nothing_is_in_use() {
    let server = ApiServer::new(Options::default());
    assert_eq!(in_use(server.client(), true).await.unwrap(), InUse::default());
}
