use std::time::Duration;

use heddle_core::condition::Draft;
use heddle_core::fault::Fault;
use heddle_core::preflight::{Grade, Line, check, condition, worst};

use super::{Settings as Places, gather};
use crate::agent::Tell;
use crate::runtime::{self, Actor, Cx};

/// A look that takes longer means that a GPU hangs: the inventory tells of that.
const LIMIT: Duration = Duration::from_secs(120);

/// What a [`Preflight`] is built from.
#[derive(Clone)]
pub struct Settings {
    /// Where everything is.
    pub places: Places,
    /// How often a node on which something fails is looked at again: what was mended is to be seen.
    pub while_failing: Duration,
    /// How often any other node is. Each look asks the API server twice, and there may be ten thousand nodes.
    pub otherwise: Duration,
    /// Who shows the sum of it.
    pub condition: Tell<Draft>,
}

/// What it is told.
#[derive(Debug)]
pub enum Message {
    /// Look.
    Look,
    /// The node was looked at; or why not.
    Looked(Result<Vec<Line>, String>),
}

impl runtime::Message for Message {
    fn kind(&self) -> &'static str {
        match self {
            Self::Look => "Look",
            Self::Looked(_) => "Looked",
        }
    }
}

/// Looks at the node when an agent begins to act for it, and again every so often.
pub struct Preflight {
    settings: Settings,
    /// What was told last: each line is logged when it changes.
    told: Vec<Line>,
}

impl Preflight {
    /// One that has not looked yet.
    pub fn new(settings: Settings) -> Self {
        Self { settings, told: Vec::new() }
    }

    fn tell(&mut self, lines: Vec<Line>) {
        for line in lines.iter().filter(|line| !self.told.contains(line)) {
            match line.grade {
                Grade::Ok if self.told.iter().any(|told| told.check == line.check) => {
                    tracing::info!(check = line.check, "preflight: {}", line.sentence());
                }
                Grade::Ok => {}
                Grade::Warn => tracing::warn!(check = line.check, "preflight: {}", line.sentence()),
                Grade::Fail => tracing::error!(check = line.check, "preflight: {}", line.sentence()),
            }
        }
        (self.settings.condition)(condition(&lines));
        self.told = lines;
    }
}

impl Actor for Preflight {
    const KIND: &'static str = "Preflight";
    type Message = Message;

    fn started(&mut self, cx: &mut Cx<'_, Self>) -> Result<(), Fault> {
        self.handle(Message::Look, cx)
    }

    fn handle(&mut self, message: Message, cx: &mut Cx<'_, Self>) -> Result<(), Fault> {
        match message {
            Message::Look => {
                let places = self.settings.places.clone();
                let look = async move {
                    match tokio::time::timeout(LIMIT, gather(&places)).await {
                        Ok(facts) => facts.map(|facts| check(&facts)),
                        Err(_) => Err(format!("the node was not looked at within {LIMIT:?}")),
                    }
                };
                cx.spawn_then("look", look, Message::Looked);
            }
            Message::Looked(Ok(lines)) => {
                let fails = worst(&lines) == Grade::Fail;
                self.tell(lines);
                let pause = if fails { self.settings.while_failing } else { self.settings.otherwise };
                cx.after(pause, Message::Look);
            }
            Message::Looked(Err(why)) => {
                tracing::warn!("preflight: {why}");
                cx.after(self.settings.otherwise, Message::Look);
            }
        }
        Ok(())
    }
}
