//! A server while another agent acts for the node, as in a rolling update.
//!
//! Everything that is written on the node has one writer: the agent that acts. It keeps in memory which CDI files must
//! be there and which claims hold which channel, so a file that another process changes under its hands is put back or
//! forgotten. This one only reads, and keeps what asks for more until its turn.

use heddle_core::claim::ClaimKey;
use heddle_core::claim::cdi;
use heddle_core::claim::checkpoint::PreparedDevice;
use heddle_core::claim::plan::{self, Known};
use heddle_core::fault::{Fault, reason};

use super::context::{Context, Driver};
use super::message::Message;

/// The calls that wait for the turn, in their order.
#[derive(Default)]
pub(super) struct Standby {
    waiting: Vec<Message>,
}

impl Standby {
    /// Answers or keeps what only the acting agent may do; gives back what is done all the same.
    pub(super) fn hear(&mut self, message: Message, context: &Context) -> Option<Message> {
        match message {
            Message::Prepare { driver, claim, together, reply } => match standing(context, driver, &claim) {
                Some(devices) => reply.send(Ok(devices)),
                None => self.keep(Message::Prepare { driver, claim, together, reply }),
            },
            Message::Unprepare { .. } => self.keep(message),
            Message::Missing { reply, .. } => reply.send(Fault::retryable(
                reason::STANDING_BY,
                "another agent still acts for this node; this one does when that one's pod has ended",
            )),
            Message::Inventory(inventory) => drop(context.inventory.send_replace(Some(inventory))),
            // Of nothing that this server has begun.
            Message::Rebuild { .. } | Message::Restore | Message::Leftover { .. } | Message::AtRest { .. } => {}
            Message::Turn | Message::Registered { .. } | Message::FilesChanged => return Some(message),
        }
        None
    }

    /// The calls that are still waited for.
    pub(super) fn calls(self) -> impl Iterator<Item = Message> {
        self.waiting.into_iter().filter(is_awaited)
    }

    fn keep(&mut self, call: Message) {
        // The kubelet gives up after a while and comes again, so there are never more than it has calls open.
        self.waiting.retain(is_awaited);
        self.waiting.push(call);
    }
}

fn is_awaited(call: &Message) -> bool {
    match call {
        Message::Prepare { reply, .. } => !reply.is_closed(),
        Message::Unprepare { reply, .. } => !reply.is_closed(),
        _ => false,
    }
}

/// The answer for a claim that is prepared and whose files are as they must be.
fn standing(context: &Context, driver: Driver, claim: &ClaimKey) -> Option<Vec<PreparedDevice>> {
    claim.check().ok()?;
    let on_disk = context.store(driver).ok()?.peek(&claim.uid)?;
    let file = cdi::file(&on_disk).ok()?;
    let node = context.node_facts().ok()?;
    let known = Known::new(claim.clone(), driver.name(), node, String::new(), Some(on_disk));
    plan::standing(&Known { cdi_intact: file.is_none_or(|file| context.cdi.intact(&file)), ..known })
}
