//! Nodes on their way into an exclusive IMEX domain and back.

use heddle_core::api::{ComputeDomainRef, DomainKind};

use super::cluster::Cluster;
use super::scenes::LIMIT;
use super::snapshot::Snapshot;

/// Waits until the daemon of each of these nodes is READY in the exclusive domain of the ComputeDomain.
///
/// # Errors
/// Which node is not there.
pub async fn into_domain_of(cluster: &Cluster, cd: &str, nodes: &[&str]) -> anyhow::Result<Snapshot> {
    let what = format!("{} serve the IMEX domain of {cd}", nodes.join(" and "));
    let of_cd = |owner: &Option<ComputeDomainRef>| owner.as_ref().is_some_and(|owner| owner.name == cd);
    cluster.until(&what, LIMIT, |snapshot| serve(snapshot, nodes, |_, owner| of_cd(owner))).await
}

/// The same, in the domain that the clique shares.
///
/// # Errors
/// Which node is not there.
pub async fn home(cluster: &Cluster, nodes: &[&str]) -> anyhow::Result<Snapshot> {
    let what = format!("{} serve the shared IMEX domain", nodes.join(" and "));
    cluster.until(&what, LIMIT, |snapshot| serve(snapshot, nodes, |kind, _| kind == DomainKind::Shared)).await
}

fn serve(
    snapshot: &Snapshot,
    nodes: &[&str],
    wanted: impl Fn(DomainKind, &Option<ComputeDomainRef>) -> bool,
) -> Result<(), String> {
    for name in nodes {
        let node = snapshot.nodes.iter().find(|node| node.metadata.name.as_deref() == Some(name));
        let daemon = node.and_then(|node| node.status.as_ref()).map(|status| &status.daemon);
        let Some(daemon) = daemon else { return Err(format!("{name} has not reported")) };
        let of = |domain: &String| {
            let domain = snapshot.domains.iter().find(|known| known.metadata.name.as_ref() == Some(domain))?;
            Some(wanted(domain.spec.kind, &domain.spec.compute_domain))
        };
        if daemon.domain.as_ref().and_then(of) != Some(true) || daemon.state != "READY" {
            let domain = daemon.domain.as_deref().unwrap_or("none");
            return Err(format!("the daemon of {name} is {} in {domain}", daemon.state));
        }
    }
    Ok(())
}
