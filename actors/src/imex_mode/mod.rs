//! Who runs the node's IMEX daemon: what it is set to, and what its claims were prepared under.

mod file;

use std::path::{Path, PathBuf};
use std::time::Duration;

use heddle_core::api::ImexMode;
use heddle_core::condition::Draft;
use heddle_core::fault::Fault;
use heddle_core::imex::{Known, Standing, standing};
use heddle_core::inventory::Notice;

use crate::agent::Tell;
use crate::node_link::DomainView;
use crate::runtime::{self, Actor, Cx, Overflow};

/// Pause before a write that has failed is tried again.
const RETRY: Duration = Duration::from_secs(5);

/// What a [`ModeKeeper`] is built from.
#[derive(Clone)]
pub struct Settings {
    /// What the node is set to.
    pub wanted: ImexMode,
    /// Where the agent keeps its files.
    pub state_dir: PathBuf,
    /// Who acts by it.
    pub standing: Tell<Standing>,
    /// Who reports it.
    pub condition: Tell<Draft>,
    /// Who tells people.
    pub notices: Tell<Notice>,
}

/// What it is told.
#[derive(Debug)]
pub enum Message {
    /// From the node link: what the agent of before has reported.
    View(DomainView),
    /// From the allocator: how many claims hold a channel.
    Prepared(usize),
    /// The pause after a failed write is over.
    Again,
}

impl runtime::Message for Message {
    fn kind(&self) -> &'static str {
        match self {
            Self::View(_) => "View",
            Self::Prepared(_) => "Prepared",
            Self::Again => "Again",
        }
    }

    fn overflow(&self) -> Overflow {
        Overflow::Replace
    }
}

/// Owns the file that remembers under which mode claims are prepared.
pub struct ModeKeeper {
    settings: Settings,
    file: PathBuf,
    known: Known,
    said: Option<Standing>,
}

impl ModeKeeper {
    /// With what was remembered. A file that cannot be read is as good as none: the node's object tells too.
    pub fn new(settings: Settings) -> Self {
        let file = settings.state_dir.join(file::NAME);
        let known = Known { kept: read(&file), ..Known::default() };
        Self { settings, file, known, said: None }
    }

    /// A disk that is full ends no agent: until it can be written nothing is changed.
    fn settle(&mut self, cx: &mut Cx<'_, Self>) {
        if let Err(fault) = self.decide() {
            tracing::warn!(reason = fault.reason, "{fault}");
            cx.after(RETRY, Message::Again);
        }
    }

    /// Says what has become different. It is remembered before anybody acts by it.
    fn decide(&mut self) -> Result<(), Fault> {
        let Some(standing) = standing(self.settings.wanted, self.known) else { return Ok(()) };
        // Where it went with its folder, the next agent is to find it again.
        let lost = self.said.is_some() && !self.file.exists();
        if !lost && self.said.as_ref() == Some(&standing) {
            return Ok(());
        }
        let before = match (&self.said, self.known.kept) {
            (Some(said), _) => Some(said.clone()),
            (None, kept) => kept.map(Standing::settled),
        };
        if lost || self.known.kept != Some(standing.acts) {
            file::write(&self.settings.state_dir, standing.acts)?;
            self.known.kept = Some(standing.acts);
        }
        if self.said.as_ref() == Some(&standing) {
            return Ok(());
        }
        tracing::info!(acts = %standing.acts, wanted = %standing.wanted, holding = standing.holding, "IMEX mode");
        let more = self.said.as_ref().is_some_and(|said| said.acts == standing.acts && said.wanted == standing.wanted);
        if let Some(notice) = standing.notice(before.as_ref()).filter(|_| !more) {
            (self.settings.notices)(notice);
        }
        (self.settings.condition)(standing.condition());
        (self.settings.standing)(standing.clone());
        self.said = Some(standing);
        Ok(())
    }
}

fn read(file: &Path) -> Option<ImexMode> {
    match file::read(file) {
        Ok(kept) => kept,
        Err(error) => {
            tracing::warn!(file = %file.display(), "under which IMEX mode claims are prepared cannot be read: {error}");
            None
        }
    }
}

impl Actor for ModeKeeper {
    const KIND: &'static str = "ModeKeeper";
    type Message = Message;

    fn started(&mut self, cx: &mut Cx<'_, Self>) -> Result<(), Fault> {
        self.settle(cx);
        Ok(())
    }

    fn handle(&mut self, message: Message, cx: &mut Cx<'_, Self>) -> Result<(), Fault> {
        match message {
            // Later views tell what this agent itself has reported.
            Message::View(view) if self.known.reported.is_none() => {
                self.known.reported =
                    Some(view.node.status.as_ref().map(|status| status.imex_mode).unwrap_or_default());
            }
            Message::View(_) => {}
            Message::Prepared(claims) => self.known.prepared = Some(claims),
            Message::Again => {}
        }
        self.settle(cx);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;
    use std::sync::Arc;

    use heddle_core::api::ImexMode::{DriverManaged, HostManaged};
    use heddle_core::api::{IMEXNode, IMEXNodeStatus};
    use tokio::sync::watch;

    use super::*;
    use crate::runtime::{Addr, Runtime, Scope, Spec, block_on};

    struct Rig {
        scope: Scope,
        keeper: Addr<Message>,
        standing: watch::Receiver<Option<Standing>>,
        notices: Rc<RefCell<Vec<Notice>>>,
        condition: Rc<RefCell<Option<Draft>>>,
    }

    /// The agent of a node that is set to this.
    fn agent(runtime: &Runtime, state_dir: &Path, wanted: ImexMode) -> Rig {
        let scope = runtime.root().child("agent");
        let (say, standing) = watch::channel(None);
        let (notices, condition) = (Rc::<RefCell<Vec<Notice>>>::default(), Rc::<RefCell<Option<Draft>>>::default());
        let (noted, drafted) = (notices.clone(), condition.clone());
        let settings = Settings {
            wanted,
            state_dir: state_dir.to_owned(),
            standing: Rc::new(move |standing| drop(say.send(Some(standing)))),
            condition: Rc::new(move |draft| drop(drafted.borrow_mut().replace(draft))),
            notices: Rc::new(move |notice| noted.borrow_mut().push(notice)),
        };
        let keeper = scope.supervise(Spec::default(), move || Ok(ModeKeeper::new(settings.clone())));
        Rig { scope, keeper, standing, notices, condition }
    }

    impl Rig {
        async fn until(&mut self, acts: ImexMode, wanted: ImexMode, holding: usize) {
            let expected = Standing { acts, wanted, holding };
            let fits = |said: &Option<Standing>| said.as_ref() == Some(&expected);
            let waited = tokio::time::timeout(std::time::Duration::from_secs(30), self.standing.wait_for(fits)).await;
            waited.expect("the test hangs").unwrap();
        }

        fn reasons(&self) -> Vec<&'static str> {
            self.notices.borrow().iter().map(|notice| notice.reason).collect()
        }

        fn see(&self, mode: ImexMode) {
            let mut node = IMEXNode::new("n1", Default::default());
            node.status = Some(IMEXNodeStatus { imex_mode: mode, ..Default::default() });
            self.keeper.tell(Message::View(DomainView { node: Arc::new(node), domain: None }));
        }
    }

    #[test]
    fn issue_1163_a_change_of_mode_waits_for_the_last_claim_over_restarts_and_is_told() {
        block_on(async {
            let (dir, runtime) = (tempfile::tempdir().unwrap(), Runtime::new());
            let mut rig = agent(&runtime, dir.path(), DriverManaged);
            rig.keeper.tell(Message::Prepared(0));
            rig.until(DriverManaged, DriverManaged, 0).await;
            rig.scope.stop();

            for _ in 0..2 {
                let mut rig = agent(&runtime, dir.path(), HostManaged);
                rig.keeper.tell(Message::Prepared(2));
                rig.until(DriverManaged, HostManaged, 2).await;
                assert_eq!(rig.reasons(), ["ImexModePending"]);
                assert_eq!(rig.condition.borrow().as_ref().unwrap().status, "False");
                rig.scope.stop();
            }
            let mut rig = agent(&runtime, dir.path(), HostManaged);
            rig.keeper.tell(Message::Prepared(2));
            rig.until(DriverManaged, HostManaged, 2).await;
            rig.keeper.tell(Message::Prepared(1));
            rig.until(DriverManaged, HostManaged, 1).await;
            assert_eq!(rig.reasons().len(), 1, "one claim less is no news");
            rig.keeper.tell(Message::Prepared(0));
            rig.until(HostManaged, HostManaged, 0).await;
            assert_eq!(rig.reasons(), ["ImexModePending", "ImexModeChanged"]);
            assert_eq!(rig.condition.borrow().as_ref().unwrap().status, "True");
            rig.keeper.tell(Message::Prepared(3));
            rig.scope.stop();

            let mut rig = agent(&runtime, dir.path(), HostManaged);
            rig.until(HostManaged, HostManaged, 0).await;
            assert_eq!(rig.reasons(), [""; 0], "it is remembered");
        });
    }

    #[test]
    fn where_the_file_is_lost_the_nodes_object_tells() {
        block_on(async {
            let (dir, runtime) = (tempfile::tempdir().unwrap(), Runtime::new());
            std::fs::write(dir.path().join(file::NAME), "who knows").unwrap();
            let mut rig = agent(&runtime, dir.path(), DriverManaged);
            rig.keeper.tell(Message::Prepared(1));
            rig.see(HostManaged);
            rig.until(HostManaged, DriverManaged, 1).await;
            rig.see(DriverManaged);
            rig.keeper.tell(Message::Prepared(2));
            rig.until(HostManaged, DriverManaged, 2).await;
            assert_eq!(file::read(&dir.path().join(file::NAME)).unwrap(), Some(HostManaged));

            // Removed with its folder, while the agent runs.
            std::fs::remove_file(dir.path().join(file::NAME)).unwrap();
            rig.keeper.tell(Message::Prepared(1));
            rig.until(HostManaged, DriverManaged, 1).await;
            assert_eq!(file::read(&dir.path().join(file::NAME)).unwrap(), Some(HostManaged));
        });
    }
}
