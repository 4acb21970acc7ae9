//! Runs the parts of one kubelet life inside one task, so that ending the task ends all of them before the next life
//! begins: nothing of a dead kubelet still writes.

use futures::{StreamExt, future::BoxFuture, stream::FuturesUnordered};
use tokio::sync::mpsc;

/// Starts parts of a life.
#[derive(Clone)]
pub struct Spawner(mpsc::UnboundedSender<BoxFuture<'static, ()>>);

/// Runs them.
pub struct Nursery {
    incoming: mpsc::UnboundedReceiver<BoxFuture<'static, ()>>,
    running: FuturesUnordered<BoxFuture<'static, ()>>,
}

/// A nursery and what fills it. The queue holds at most one entry per pod and plugin of the node.
pub fn nursery() -> (Spawner, Nursery) {
    let (sender, incoming) = mpsc::unbounded_channel();
    (Spawner(sender), Nursery { incoming, running: FuturesUnordered::new() })
}

impl Spawner {
    /// Runs `part` beside the others, unless the life has ended.
    pub fn spawn(&self, part: impl Future<Output = ()> + Send + 'static) {
        let _ = self.0.send(Box::pin(part));
    }
}

impl Nursery {
    /// Runs everything until the task is ended from outside.
    pub async fn run(mut self) {
        loop {
            tokio::select! {
                part = self.incoming.recv() => match part {
                    Some(part) => self.running.push(part),
                    None => return,
                },
                Some(()) = self.running.next() => {}
            }
        }
    }
}
