//! Log lines that nobody waits for. A reader of the log that pauses must not stop who logs, and one that has gone must not end
//! it: an IMEX runner would take its daemon along, and that every job on the node.

use std::io::{self, ErrorKind, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender, TrySendError};
use std::time::{Duration, Instant};

/// Lines that wait for a reader that is slow.
const LINES: usize = 1024;
/// Pause before a writer that has no room is tried again.
const PAUSE: Duration = Duration::from_millis(10);

/// Takes lines at once and has them written by a thread of their own; what there is no room for is lost, and counted.
#[derive(Clone)]
pub struct Lossy {
    queue: SyncSender<Item>,
    lost: Arc<AtomicU64>,
}

enum Item {
    Line(Vec<u8>),
    /// All before it is written.
    Mark(SyncSender<()>),
}

impl Lossy {
    /// Writes to `out`; `tell` is called, on the thread that writes, with how many lines were lost once lines can be written
    /// again.
    pub fn start(out: impl Write + Send + 'static, tell: fn(u64)) -> io::Result<Self> {
        let (queue, lines) = mpsc::sync_channel(LINES);
        let lost = Arc::new(AtomicU64::new(0));
        let counted = lost.clone();
        std::thread::Builder::new().name("log".into()).spawn(move || write_out(out, &lines, &counted, tell))?;
        Ok(Self { queue, lost })
    }

    /// Waits until what was said so far is written, but not for ever.
    pub fn flush(&self, limit: Duration) {
        let until = Instant::now() + limit;
        let (mark, done) = mpsc::sync_channel(1);
        let mut item = Item::Mark(mark);
        loop {
            match self.queue.try_send(item) {
                Ok(()) => break,
                Err(TrySendError::Full(back)) if Instant::now() < until => item = back,
                Err(_) => return,
            }
            std::thread::sleep(PAUSE);
        }
        let _ = done.recv_timeout(until.saturating_duration_since(Instant::now()));
    }
}

impl Write for Lossy {
    /// Takes what it is given at once as one line, and never fails: nobody is to end for a line of the log.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.queue.try_send(Item::Line(line.to_vec())).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn write_out(mut out: impl Write, lines: &Receiver<Item>, lost: &AtomicU64, tell: fn(u64)) {
    while let Ok(item) = lines.recv() {
        match item {
            Item::Line(line) if write_whole(&mut out, &line).is_ok() => match lost.swap(0, Ordering::Relaxed) {
                0 => {}
                count => tell(count),
            },
            Item::Line(_) => {
                lost.fetch_add(1, Ordering::Relaxed);
            }
            Item::Mark(done) => {
                let _ = done.try_send(());
            }
        }
    }
}

/// Also where somebody has made it non-blocking.
fn write_whole(out: &mut impl Write, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match out.write(bytes) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::sleep(PAUSE),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, PoisonError};

    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    /// A reader that a test makes pause and go.
    #[derive(Clone, Default)]
    struct Reader {
        pauses: Arc<Mutex<()>>,
        gone: Arc<AtomicU64>,
        text: Arc<Mutex<String>>,
    }

    impl Write for Reader {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            drop(self.pauses.lock().unwrap_or_else(PoisonError::into_inner));
            if self.gone.load(Ordering::SeqCst) != 0 {
                return Err(ErrorKind::BrokenPipe.into());
            }
            // In pieces, as a pipe that is nearly full takes them.
            let piece = &bytes[..bytes.len().min(3)];
            self.text.lock().unwrap().push_str(std::str::from_utf8(piece).unwrap());
            Ok(piece.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_reader_that_pauses_stops_nobody_and_is_told_what_it_missed() {
        static TOLD: AtomicU64 = AtomicU64::new(0);
        let reader = Reader::default();
        let mut log = Lossy::start(reader.clone(), |count| TOLD.store(count, Ordering::SeqCst)).unwrap();
        let pause = reader.pauses.lock().unwrap();
        let all = LINES as u64 * 2;
        for number in 0..all {
            log.write_all(format!("line {number}\n").as_bytes()).unwrap();
        }
        log.flush(Duration::from_millis(1));
        drop(pause);
        log.flush(LIMIT);
        let written = reader.text.lock().unwrap().lines().count() as u64;
        assert!(written >= LINES as u64 && written < all, "{written}");
        assert_eq!(written + TOLD.load(Ordering::SeqCst), all);
        log.write_all(b"the last one\n").unwrap();
        log.flush(LIMIT);
        assert!(reader.text.lock().unwrap().ends_with("the last one\n"));
    }

    #[test]
    fn a_reader_that_has_gone_ends_nobody() {
        static TOLD: AtomicU64 = AtomicU64::new(0);
        let reader = Reader::default();
        let mut log = Lossy::start(reader.clone(), |count| TOLD.store(count, Ordering::SeqCst)).unwrap();
        reader.gone.store(1, Ordering::SeqCst);
        log.write_all(b"to nobody\n").unwrap();
        log.flush(LIMIT);
        reader.gone.store(0, Ordering::SeqCst);
        log.write_all(b"to somebody\n").unwrap();
        log.flush(LIMIT);
        assert_eq!((reader.text.lock().unwrap().as_str(), TOLD.load(Ordering::SeqCst)), ("to somebody\n", 1));
    }
}
