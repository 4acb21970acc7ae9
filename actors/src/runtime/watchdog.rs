//! Watches from outside that the thread of the actors turns. A handler that blocks it cannot be stopped; the process
//! is ended, saying who it was, and is started again by whoever runs it.

use std::io::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::Duration;

use tokio::sync::Notify;

/// What the thread is doing.
#[derive(Clone, Debug, Default)]
pub(super) struct Hand {
    now: Arc<Mutex<Option<Held>>>,
}

#[derive(Clone, Debug)]
struct Held {
    actor: &'static str,
    name: Arc<str>,
    what: &'static str,
}

impl Hand {
    fn describe(&self) -> String {
        match &*self.now.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(Held { actor, name, what }) if name.is_empty() => format!("{actor} with {what} in hand"),
            Some(Held { actor, name, what }) => format!("{actor} {name} with {what} in hand"),
            None => "something that is no actor".to_owned(),
        }
    }
}

/// One actor's way to say what it is doing.
#[derive(Clone, Debug)]
pub(super) struct InHand {
    hand: Hand,
    actor: &'static str,
    name: Arc<str>,
}

impl InHand {
    pub(super) fn new(hand: Hand, actor: &'static str, name: &str) -> Self {
        Self { hand, actor, name: name.into() }
    }

    /// The actor does `what` until the guard is dropped.
    pub(super) fn hold(&self, what: &'static str) -> Holding {
        let held = Held { actor: self.actor, name: self.name.clone(), what };
        *self.hand.now.lock().unwrap_or_else(PoisonError::into_inner) = Some(held);
        Holding { hand: self.hand.clone() }
    }
}

pub(super) struct Holding {
    hand: Hand,
}

impl Drop for Holding {
    fn drop(&mut self) {
        *self.hand.now.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// The watching thread, until it is dropped.
pub(super) struct Watchdog {
    ended: Arc<AtomicBool>,
    answers: tokio::task::JoinHandle<()>,
    thread: std::thread::Thread,
}

/// Looks per limit: the limit is exceeded when so many in a row found the thread where it was.
const LOOKS: u32 = 8;

impl Watchdog {
    /// Watches the thread that calls this.
    pub(super) fn start(limit: Duration, hand: Hand) -> std::io::Result<Self> {
        let ended = Arc::new(AtomicBool::new(false));
        let asked = Arc::new(Notify::new());
        let answered = Arc::new(AtomicBool::new(true));
        // A question that the thread answers, not a heartbeat by its own timer: that would wake an idle process more
        // often, and means nothing where time is paused.
        let answers = tokio::task::spawn_local({
            let (asked, answered) = (asked.clone(), answered.clone());
            async move {
                loop {
                    asked.notified().await;
                    answered.store(true, Ordering::Release);
                }
            }
        });
        let thread = std::thread::Builder::new().name("watchdog".into()).stack_size(128 * 1024).spawn({
            let ended = ended.clone();
            move || {
                let mut missed = 0;
                while !ended.load(Ordering::Acquire) {
                    // Looks are counted, not time: a process that was frozen as a whole has missed none.
                    missed = if answered.swap(false, Ordering::AcqRel) { 0 } else { missed + 1 };
                    if missed > LOOKS {
                        bark(limit, &hand);
                    }
                    asked.notify_one();
                    std::thread::park_timeout(limit / LOOKS);
                }
            }
        })?;
        Ok(Self { ended, answers, thread: thread.thread().clone() })
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Release);
        self.thread.unpark();
        self.answers.abort();
    }
}

/// How long the end waits for somebody to read why.
const LAST_WORD: Duration = Duration::from_secs(1);

/// Ends the process. Not by `exit`: handlers at exit, the driver library's among them, could wait for the very thread
/// that hangs.
fn bark(limit: Duration, hand: &Hand) -> ! {
    let what = hand.describe();
    tracing::error!("the actors' thread has been blocked for {limit:?} by {what}; the process ends");
    // Perhaps it is this that blocks: nobody may read it.
    let (told, is_told) = mpsc::channel::<()>();
    let _ = std::thread::Builder::new().spawn(move || {
        let text = format!("the actors' thread has been blocked for {limit:?} by {what}; the process ends");
        let _ = writeln!(std::io::stderr(), "heddle: {text}");
        drop(told);
    });
    let _ = is_told.recv_timeout(LAST_WORD);
    std::process::abort();
}
