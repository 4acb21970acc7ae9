//! What kube-scheduler and kube-controller-manager do, as far as the cluster needs it.
//!
//! Each component sees the cluster through watches and is woken by them. Deciding is pure ([`scheduler::place()`],
//! [`allocator::allocate`], [`claims::plan()`]); around it stand thin loops that write.

pub mod allocator;
pub mod claims;
mod component;
pub mod device_selector;
mod events;
mod garbage;
pub mod pods;
pub mod quantity;
pub mod scheduler;
#[cfg(test)]
mod tests;
mod watched;
pub mod workloads;

use std::sync::Arc;

use kube::{Api, Client};
use tokio::sync::Notify;
use tokio::task::JoinSet;

use claims::Claims;
use garbage::Garbage;
use scheduler::{Scheduler, Views};
use watched::{Wake, Watched};
use workloads::Workloads;

/// The running scheduler and controllers. Dropping it ends them.
pub struct Control {
    tasks: JoinSet<anyhow::Error>,
}

/// Starts the scheduler and the controllers against the API behind `client`. Must be called inside a tokio runtime.
pub fn start(client: Client) -> Control {
    let mut tasks = JoinSet::new();
    let wake = || -> Wake { Arc::new(Notify::new()) };
    let (to_scheduler, to_claims, to_workloads, to_garbage) = (wake(), wake(), wake(), wake());

    macro_rules! watch {
        ($($wake:ident),+) => {
            Watched::start(Api::all(client.clone()), vec![$(Arc::clone(&$wake)),+], &mut tasks)
        };
    }
    let views = Views {
        pods: watch!(to_scheduler, to_claims, to_workloads, to_garbage),
        nodes: watch!(to_scheduler, to_garbage),
        claims: watch!(to_scheduler, to_claims),
        templates: watch!(to_scheduler, to_claims),
        classes: watch!(to_scheduler),
        slices: watch!(to_scheduler),
    };

    let workloads = workloads::Views {
        pods: views.pods.clone(),
        deployments: watch!(to_workloads),
        replica_sets: watch!(to_workloads),
        jobs: watch!(to_workloads),
    };

    let garbage = Garbage::new(client.clone(), views.pods.clone(), views.nodes.clone(), Arc::clone(&to_garbage));
    tasks.spawn(component::run(garbage, to_garbage));
    tasks.spawn(component::run(Workloads::new(client.clone(), workloads), to_workloads));
    let claims = Claims::new(client.clone(), views.pods.clone(), views.claims.clone(), views.templates.clone());
    tasks.spawn(component::run(claims, to_claims));
    tasks.spawn(component::run(Scheduler::new(client, views), to_scheduler));
    Control { tasks }
}

impl Control {
    /// Waits until one of the tasks has ended, which none does while all is well, and says why.
    pub async fn failure(&mut self) -> anyhow::Error {
        match self.tasks.join_next().await {
            Some(Ok(error)) => error,
            Some(Err(error)) => anyhow::Error::new(error),
            None => std::future::pending().await,
        }
    }
}
