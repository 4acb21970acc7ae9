//! `GpuInventory`: what the node's GPUs and their fabric are, told on change.

mod record;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use heddle_core::fault::Fault;
use heddle_core::inventory::{Access, Channels, Fabric, GpuEvent, Inventory, Notice, Reading, Survey, XidRecord};

use crate::agent::Tell;
use crate::nvml::devices::Devices;
use crate::nvml::{Failure, Library, Listener, Sysfs};
use crate::runtime::{self, Actor, Cx, Overflow, Task};

/// A reading that takes longer means that a GPU hangs: the fabric is not to be used until it comes back.
const READING_LIMIT: Duration = Duration::from_secs(30);

/// Pause before a reading that was asked for during another one: a GPU that fails reports many XIDs a second.
const AGAIN: Duration = Duration::from_millis(100);

/// What a [`GpuInventory`] is built from.
#[derive(Clone)]
pub struct Settings {
    /// Below which the driver is installed.
    pub driver_root: PathBuf,
    /// The node's `/proc`.
    pub devices: Devices,
    /// The node's `/sys`.
    pub sysfs: Sysfs,
    /// How often NVML is read: XIDs come by themselves, but nothing tells of a change of the fabric.
    pub poll: Duration,
    /// The kind of access whose partition is the clique.
    pub access: Access,
    /// XIDs that make no GPU unhealthy.
    pub ignored_xids: BTreeSet<u64>,
    /// File that keeps the XIDs of unhealthy GPUs over restarts.
    pub record: PathBuf,
    /// Who is told of the inventory, at first and after every change.
    pub inventory: Tell<Inventory>,
    /// Who is told what people should read.
    pub notices: Tell<Notice>,
}

/// Polls NVML and listens to its events. A node without driver or GPUs has no fabric, and is told so like any other.
pub struct GpuInventory {
    settings: Settings,
    survey: Survey,
    /// What is on disk of it.
    recorded: XidRecord,
    told: Option<Inventory>,
    /// The words of the fault that was logged last: each is said once.
    logged: Option<String>,
    /// Kept open between readings.
    library: Option<Arc<Library>>,
    events: Option<Listener>,
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
#[derive(Debug)]
pub enum Message {
    /// Read again now.
    Poll,
    /// A reading has ended.
    Read(Box<Answer>),
    /// The reading of this number has not ended for too long.
    Overdue(u64),
    /// From NVML.
    Happened(GpuEvent),
    /// NVML tells of nothing any more; the text says why.
    EventsEnded(String),
}

/// What came of a reading; the library is kept open for the next one.
#[derive(Debug)]
pub struct Answer {
    library: Option<Arc<Library>>,
    reading: Result<Reading, Failure>,
}

impl runtime::Message for Message {
    fn kind(&self) -> &'static str {
        match self {
            Self::Poll => "poll",
            Self::Read(_) => "read",
            Self::Overdue(_) => "overdue",
            Self::Happened(_) => "happened",
            Self::EventsEnded(_) => "events ended",
        }
    }

    /// A GPU may report thousands of XIDs in a second, and the newest says as much as the oldest.
    fn overflow(&self) -> Overflow {
        match self {
            Self::Happened(_) => Overflow::DropOldest,
            _ => Overflow::Reject,
        }
    }
}

impl GpuInventory {
    /// An inventory that has read nothing yet.
    pub fn new(settings: Settings) -> Self {
        let kept = record::read(&settings.record);
        // Without a boot id nothing tells whether the GPUs were seen to; then they count as they did.
        let recorded = match settings.devices.boot_id() {
            Ok(boot) => kept.in_boot(&boot),
            Err(_) => kept,
        };
        Self {
            survey: Survey::new(settings.access, settings.ignored_xids.clone(), recorded.clone()),
            settings,
            recorded,
            told: None,
            logged: None,
            library: None,
            events: None,
            reading: None,
            readings: 0,
            again: false,
            next: None,
        }
    }

    /// Says and keeps what has become different.
    fn tell(&mut self, notices: Vec<Notice>) {
        for notice in notices {
            (self.settings.notices)(notice);
        }
        if self.recorded != *self.survey.record() {
            self.recorded = self.survey.record().clone();
            if let Err(fault) = record::write(&self.settings.record, &self.recorded) {
                tracing::warn!("the XIDs of unhealthy GPUs will be forgotten at a restart: {fault}");
            }
        }
        let Some(inventory) = self.survey.last() else { return };
        if self.told.as_ref() == Some(inventory) {
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
        (self.settings.inventory)(inventory.clone());
        self.told = Some(inventory.clone());
    }

    fn failed(&mut self, text: String, driver_gone: bool) {
        if self.logged.as_ref() != Some(&text) {
            tracing::warn!("{text}");
        }
        let notices = self.survey.fail(&text, driver_gone);
        self.logged = Some(text);
        self.tell(notices);
    }

    fn poll(&mut self, cx: &mut Cx<'_, Self>) {
        if self.reading.is_some() {
            self.again = true;
            return;
        }
        if let Some(next) = self.next.take() {
            next.cancel();
        }
        self.again = false;
        let (settings, library) = (self.settings.clone(), self.library.take());
        let (root, devices, sysfs) = (settings.driver_root, settings.devices, settings.sysfs);
        cx.spawn_then("read NVML", read(root, devices, sysfs, library), |answer| Message::Read(Box::new(answer)));
        self.readings += 1;
        self.reading = Some(cx.after(READING_LIMIT, Message::Overdue(self.readings)));
    }

    fn read(&mut self, answer: Answer, cx: &mut Cx<'_, Self>) {
        if let Some(reading) = self.reading.take() {
            reading.cancel();
        }
        self.library = answer.library;
        match answer.reading {
            Ok(reading) => {
                self.logged = None;
                let notices = self.survey.see(&reading);
                self.tell(notices);
                self.listen(cx);
            }
            Err(failure) => {
                // It keeps the library open, and the next one is to be loaded anew.
                self.events = None;
                self.failed(failure.to_string(), failure.driver_gone);
            }
        }
        cx.ready();
        let pause = if self.again { AGAIN } else { self.settings.poll };
        self.next = Some(cx.after(pause, Message::Poll));
    }

    fn listen(&mut self, cx: &mut Cx<'_, Self>) {
        let (Some(library), None) = (&self.library, &self.events) else { return };
        if self.survey.last().is_none_or(|inventory| inventory.gpus.is_empty()) {
            return;
        }
        let (heard, ended) = (cx.address(), cx.address());
        self.events = Some(Listener::start(
            library.clone(),
            move |event| heard.tell(Message::Happened(event)),
            move |why| ended.tell(Message::EventsEnded(why)),
        ));
    }
}

impl Actor for GpuInventory {
    const KIND: &'static str = "GpuInventory";
    type Message = Message;

    fn started(&mut self, cx: &mut Cx<'_, Self>) -> Result<(), Fault> {
        self.poll(cx);
        Ok(())
    }

    fn handle(&mut self, message: Message, cx: &mut Cx<'_, Self>) -> Result<(), Fault> {
        match message {
            Message::Poll => self.poll(cx),
            Message::Read(answer) => self.read(*answer, cx),
            // Its answer came while this message was on its way.
            Message::Overdue(reading) if self.reading.is_none() || reading != self.readings => {}
            // The reading goes on, and no second one is begun beside it.
            Message::Overdue(_) => self.failed(
                format!("NVML has not answered for {READING_LIMIT:?}: a GPU hangs; look at the node's XIDs"),
                false,
            ),
            Message::Happened(event) => {
                // What people should know of it is a notice, and not said as often.
                tracing::debug!(gpu = event.uuid, happening = ?event.happening, "NVML tells of an event");
                let (notices, look) = self.survey.hear(&event);
                self.tell(notices);
                if look {
                    self.poll(cx);
                }
            }
            Message::EventsEnded(why) => {
                tracing::info!("NVML's events are not heard of: {why}");
                // The next reading begins anew, and finds what has happened to the GPUs.
                self.events = None;
            }
        }
        Ok(())
    }
}

/// One reading, on a thread that may block. After an error the library is opened anew: the driver may be another one.
async fn read(root: PathBuf, devices: Devices, sysfs: Sysfs, library: Option<Arc<Library>>) -> Answer {
    let reading = tokio::task::spawn_blocking(move || {
        let library = match library {
            Some(library) => library,
            None => Arc::new(Library::open(&root)?),
        };
        let mut reading = library.read()?;
        sysfs.add_places(&mut reading);
        reading.channels = Channels { major: devices.channel_major().ok(), count: devices.channel_count().ok() };
        Ok((library, reading))
    });
    match reading.await {
        Ok(Ok((library, reading))) => Answer { library: Some(library), reading: Ok(reading) },
        Ok(Err(failure)) => Answer { library: None, reading: Err(failure) },
        Err(panic) => Answer { library: None, reading: Err(Failure::of_panic(&panic)) },
    }
}
