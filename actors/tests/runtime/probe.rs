//! An actor that does as it is told, and a log of what happened.

use std::cell::RefCell;
use std::rc::Rc;

use heddle_actors::runtime::{Actor, Addr, Cx, Message, Overflow, Reply, Runtime, Scope, Spec};
use heddle_core::fault::{Fault, reason};

/// What happened, in order.
#[derive(Clone, Default)]
pub struct Log(Rc<RefCell<Vec<String>>>);

impl Log {
    pub fn add(&self, line: impl Into<String>) {
        self.0.borrow_mut().push(line.into());
    }

    pub fn lines(&self) -> Vec<String> {
        self.0.borrow().clone()
    }
}

pub struct Probe {
    pub log: Log,
    pub count: u32,
    name: &'static str,
}

impl Probe {
    pub fn new(name: &'static str, log: &Log) -> Self {
        Self { log: log.clone(), count: 0, name }
    }
}

type Act = Box<dyn FnOnce(&mut Probe, &mut Cx<'_, Probe>) -> Result<(), Fault> + Send>;

/// One thing to do.
pub struct Do {
    kind: &'static str,
    overflow: Overflow,
    act: Act,
}

impl Message for Do {
    fn kind(&self) -> &'static str {
        self.kind
    }

    fn overflow(&self) -> Overflow {
        self.overflow
    }
}

impl Actor for Probe {
    const KIND: &'static str = "Probe";
    type Message = Do;

    fn started(&mut self, cx: &mut Cx<'_, Self>) -> Result<(), Fault> {
        self.log.add(format!("{} started", self.name));
        if self.name == "ready" {
            cx.ready();
        }
        Ok(())
    }

    fn handle(&mut self, message: Do, cx: &mut Cx<'_, Self>) -> Result<(), Fault> {
        (message.act)(self, cx)
    }

    fn stopping(&mut self) {
        self.log.add(format!("{} stopping", self.name));
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        self.log.add(format!("{} dropped", self.name));
    }
}

/// A message that does something and cannot fail.
pub fn act(run: impl FnOnce(&mut Probe, &mut Cx<'_, Probe>) + Send + 'static) -> Do {
    attempt(move |probe, cx| {
        run(probe, cx);
        Ok(())
    })
}

/// A message that does something.
pub fn attempt(run: impl FnOnce(&mut Probe, &mut Cx<'_, Probe>) -> Result<(), Fault> + Send + 'static) -> Do {
    Do { kind: "Do", overflow: Overflow::Reject, act: Box::new(run) }
}

/// A message of a kind and policy that notes what it is.
pub fn note(kind: &'static str, overflow: Overflow, line: &'static str) -> Do {
    Do {
        kind,
        overflow,
        act: Box::new(move |probe, _| {
            probe.log.add(line);
            Ok(())
        }),
    }
}

pub fn panics() -> Do {
    act(|_, _| panic!("told to"))
}

pub fn fails() -> Do {
    attempt(|_, _| Err(broken()))
}

pub fn broken() -> Fault {
    Fault::retryable(reason::NODE_IO, "the thing is broken")
}

pub fn count(reply: Reply<u32>) -> Do {
    act(move |probe, _| reply.send(probe.count))
}

pub fn add(number: u32) -> Do {
    act(move |probe, _| probe.count += number)
}

/// Starts a probe.
pub fn start(scope: &Scope, name: &'static str, log: &Log, spec: Spec) -> Addr<Do> {
    let log = log.clone();
    scope.supervise(spec, move || Ok(Probe::new(name, &log)))
}

/// One probe by itself.
pub fn alone() -> (Runtime, Addr<Do>, Log) {
    let runtime = Runtime::new();
    let log = Log::default();
    let probe = start(&runtime.root(), "probe", &log, Spec::default());
    (runtime, probe, log)
}

/// Runs a test on a System with paused time.
pub fn paused<F: Future>(test: F) -> F::Output {
    heddle_actors::runtime::block_on(async {
        tokio::time::pause();
        test.await
    })
}

/// The value of a series in the metrics text.
pub fn series(runtime: &Runtime, name: &str) -> Option<f64> {
    let text = runtime.metrics().encode().expect("metrics encode");
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
}
