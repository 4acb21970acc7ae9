//! `GpuInventory`: what the node's GPUs and their fabric are, told on change.

use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use heddle_core::fault::{Fault, reason};
use heddle_core::inventory::{Fabric, Inventory, inventory};

use crate::nvml::Library;
use crate::runtime::{self, Actor, Cx, Task};

/// A reading that takes longer means that a GPU hangs: the fabric is not to be used until it comes back.
const READING_LIMIT: Duration = Duration::from_secs(30);

/// Who is told of the inventory, at first and after every change.
pub type Listener = Rc<dyn Fn(Inventory)>;

/// Polls NVML. A node without driver or GPUs has no fabric, and is told so like any other.
pub struct GpuInventory {
    driver_root: PathBuf,
    poll: Duration,
    listeners: Vec<Listener>,
    told: Option<Inventory>,
    /// The words of the fault that was logged last: each is said once.
    logged: Option<String>,
    /// Kept open between readings.
    library: Option<Arc<Library>>,
    /// While a reading goes on: the timer that finds it overdue.
    reading: Option<Task>,
    /// Readings so far.
    readings: u64,
    /// Somebody asked during the reading.
    again: bool,
    /// Between readings: the timer of the next one.
    next: Option<Task>,
}

/// What it is told.
pub enum Message {
    /// Read again now.
    Poll,
    /// A reading has ended.
    Read(Box<Answer>),
    /// The reading of this number has not ended for too long.
    Overdue(u64),
}

/// What came of a reading; the library is kept open for the next one.
pub struct Answer {
    library: Option<Arc<Library>>,
    inventory: Result<Inventory, Fault>,
}

impl runtime::Message for Message {
    fn kind(&self) -> &'static str {
        match self {
            Self::Poll => "poll",
            Self::Read(_) => "read",
            Self::Overdue(_) => "overdue",
        }
    }
}

impl GpuInventory {
    /// Reads the library below `driver_root` every so often.
    pub fn new(driver_root: PathBuf, poll: Duration, listeners: Vec<Listener>) -> Self {
        Self {
            driver_root,
            poll,
            listeners,
            told: None,
            logged: None,
            library: None,
            reading: None,
            readings: 0,
            again: false,
            next: None,
        }
    }

    fn tell(&mut self, inventory: Inventory) {
        if self.told.as_ref() == Some(&inventory) {
            return;
        }
        match &inventory.fabric {
            Fabric::None => tracing::info!(gpus = inventory.gpus.len(), "the node has no NVLink fabric"),
            Fabric::Pending(what) => {
                tracing::info!(gpus = inventory.gpus.len(), what, "the NVLink fabric is not up yet")
            }
            Fabric::Ready(clique) => tracing::info!(gpus = inventory.gpus.len(), %clique, "the NVLink fabric is up"),
            Fabric::Unhealthy(why) => {
                tracing::warn!(gpus = inventory.gpus.len(), why, "the NVLink fabric must not be used");
            }
        }
        for listener in &self.listeners {
            listener(inventory.clone());
        }
        self.told = Some(inventory);
    }

    fn log_once(&mut self, fault: &Fault) {
        if self.logged.as_ref() != Some(&fault.message) {
            tracing::warn!(reason = fault.reason, "{fault}");
            self.logged = Some(fault.message.clone());
        }
    }

    /// A driver that was there and cannot be read now may be under update: its GPUs are not gone, but not usable. One
    /// that has not come yet says nothing about the fabric: claims wait for it, rather than go without a channel.
    fn without_answer(&self, fault: &Fault) -> Inventory {
        match &self.told {
            Some(told) if !told.gpus.is_empty() => {
                Inventory { fabric: Fabric::Unhealthy(fault.message.clone()), ..told.clone() }
            }
            _ => Inventory { fabric: Fabric::Pending(fault.message.clone()), ..Inventory::default() },
        }
    }
}

impl Actor for GpuInventory {
    const KIND: &'static str = "GpuInventory";
    type Message = Message;

    fn started(&mut self, cx: &mut Cx<'_, Self>) -> Result<(), Fault> {
        self.handle(Message::Poll, cx)
    }

    fn handle(&mut self, message: Message, cx: &mut Cx<'_, Self>) -> Result<(), Fault> {
        match message {
            Message::Poll if self.reading.is_some() => self.again = true,
            Message::Poll => {
                if let Some(next) = self.next.take() {
                    next.cancel();
                }
                self.again = false;
                let (root, library) = (self.driver_root.clone(), self.library.take());
                cx.spawn_then("read NVML", read(root, library), |answer| Message::Read(Box::new(answer)));
                self.readings += 1;
                self.reading = Some(cx.after(READING_LIMIT, Message::Overdue(self.readings)));
            }
            Message::Read(answer) => {
                if let Some(reading) = self.reading.take() {
                    reading.cancel();
                }
                self.library = answer.library;
                match answer.inventory {
                    Ok(inventory) => {
                        self.logged = None;
                        self.tell(inventory);
                    }
                    Err(fault) => {
                        self.log_once(&fault);
                        self.tell(self.without_answer(&fault));
                    }
                }
                cx.ready();
                let pause = if self.again { Duration::ZERO } else { self.poll };
                self.next = Some(cx.after(pause, Message::Poll));
            }
            // Its answer came while this message was on its way.
            Message::Overdue(reading) if self.reading.is_none() || reading != self.readings => {}
            Message::Overdue(_) => {
                // The reading goes on, and no second one is begun beside it.
                let text = format!("NVML has not answered for {READING_LIMIT:?}: a GPU hangs; look at the node's XIDs");
                let fault = Fault::retryable(reason::NVML, text);
                self.log_once(&fault);
                self.tell(self.without_answer(&fault));
            }
        }
        Ok(())
    }
}

/// One reading, on a thread that may block. After an error the library is opened anew: the driver may be another one.
async fn read(root: PathBuf, library: Option<Arc<Library>>) -> Answer {
    let reading = tokio::task::spawn_blocking(move || {
        let library = match library {
            Some(library) => library,
            None => Arc::new(Library::open(&root)?),
        };
        let reading = library.read()?;
        Ok((library, inventory(&reading)))
    });
    match reading.await {
        Ok(Ok((library, inventory))) => Answer { library: Some(library), inventory: Ok(inventory) },
        Ok(Err(fault)) => Answer { library: None, inventory: Err(fault) },
        Err(panic) => {
            let fault = Fault::retryable(reason::NVML, format!("reading NVML failed: {panic}"));
            Answer { library: None, inventory: Err(fault) }
        }
    }
}
