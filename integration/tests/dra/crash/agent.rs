//! The process that is cut off: the actors of an agent that take part in a claim, told what to do by lines on its input.

use std::io::{BufRead, Write};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use heddle_actors::agent::Later;
use heddle_actors::channel_allocator::{self, ChannelAllocator};
use heddle_actors::dra::{ClaimEvents, DraDependencies, DraServer, HealthBoard};
use heddle_actors::node_link::{self, DomainView, NodeFacts, NodeLink};
use heddle_actors::runtime::{Runtime, Spec, Turn, block_on};
use heddle_core::api::ImexMode;
use heddle_core::imex::Standing;
use heddle_core::inventory::{Fabric, Inventory};
use heddle_integration::node::NodePaths;

use super::{DOMAIN, clique, settings};
use crate::bed::NODE;

/// Every kind of call to the disk that changes something.
pub const KINDS: [&str; 7] = ["mkdir", "create", "write", "fsync-file", "rename", "fsync-dir", "unlink"];
/// Where the node's files are.
pub const ROOT: &str = "HEDDLE_CRASH_ROOT";
/// Where the API server is.
pub const API: &str = "HEDDLE_CRASH_API";
/// Before which call to the disk since its start the process ends; none for never.
pub const CUT: &str = "HEDDLE_CRASH_CUT";

/// The calls to the disk, and before which of them the process ends.
static SEEN: Mutex<Vec<&str>> = Mutex::new(Vec::new());
static CUT_AT: AtomicUsize = AtomicUsize::new(usize::MAX);

/// Lives until it is cut off, or its parent lets go of it.
pub fn live() {
    let root = PathBuf::from(std::env::var_os(ROOT).unwrap());
    if let Ok(cut) = std::env::var(CUT) {
        CUT_AT.store(cut.parse().unwrap(), Ordering::SeqCst);
    }
    watch_points();
    std::thread::spawn(hear);
    block_on(async {
        let paths = NodePaths::new(root);
        start(&paths).await;
        let registered = paths.registry().join(format!("{}-{}-reg.sock", heddle_core::names::DRIVER, crate::bed::POD));
        while std::os::unix::net::UnixStream::connect(&registered).is_err() {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
        say("ready");
        std::future::pending::<()>().await;
    });
}

async fn start(paths: &NodePaths) {
    let config = kube::Config::new(std::env::var(API).unwrap().parse().unwrap());
    let client = kube::Client::try_from(config).unwrap();
    let (runtime, turn) = (Runtime::new(), Turn::default());
    turn.begin();
    let scope = runtime.root().child("agent");
    let (to_allocator, to_server) = (Later::<channel_allocator::Message>::default(), Later::default());
    let view = to_allocator.clone();
    let link_settings = node_link::Settings {
        client: client.clone(),
        node_name: NODE.into(),
        facts: Rc::new(|| NodeFacts {
            boot_id: Some("boot-1".into()),
            channel_count: Some(2048),
            addresses: vec!["127.10.0.1".into()],
        }),
        view: Rc::new(move |seen: DomainView| view.tell(channel_allocator::Message::View(seen))),
    };
    let link = scope.supervise(Spec::default(), move || Ok(NodeLink::new(link_settings.clone())));
    let server = to_server.clone();
    let allocator_settings = channel_allocator::Settings {
        client: client.clone(),
        node_link: link.clone(),
        may_switch: Rc::new(|_| {}),
        prepared: Rc::new(|_| {}),
        standing: Some(Standing::settled(ImexMode::DriverManaged)),
        restore: Rc::new(move || server.tell(heddle_actors::dra::Message::Restore)),
    };
    let allocator = scope.supervise(Spec::default(), move || Ok(ChannelAllocator::new(allocator_settings.clone())));
    to_allocator.set(&allocator);
    let inventory = Inventory { fabric: Fabric::Ready(clique()), ..Inventory::default() };
    link.tell(node_link::Message::Inventory(inventory.clone()));
    allocator.tell(channel_allocator::Message::Inventory(inventory.clone()));
    allocator.tell(channel_allocator::Message::Daemon(Ok(DOMAIN.with(Clone::clone))));
    let events_client = client.clone();
    let events = scope.supervise(Spec::default(), move || Ok(ClaimEvents::new(events_client.clone(), NODE)));
    let dependencies = DraDependencies {
        settings: settings(paths),
        client,
        allocator,
        events,
        health: HealthBoard::default(),
        scope: scope.clone(),
        inventory: Some(inventory),
        turn,
    };
    let server = scope.supervise(DraServer::spec(), move || DraServer::new(dependencies.clone()));
    to_server.set(&server);
    // It lives as long as the process.
    std::mem::forget(runtime);
}

/// Notes every call to the disk, and ends the process before the one that is to be cut off.
fn watch_points() {
    for kind in KINDS {
        let seen = move || {
            let mut seen = SEEN.lock().unwrap();
            if seen.len() == CUT_AT.load(Ordering::SeqCst) {
                end();
            }
            seen.push(kind);
        };
        fail::cfg_callback(kind, seen).unwrap();
    }
}

/// As a power switch does it: nothing is run any more, in no thread.
fn end() -> ! {
    rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL).unwrap();
    loop {
        std::thread::park();
    }
}

/// `cut N`: ends before the N-th call to the disk from now. `fail KIND N ERRNO`: lets the N-th call of that kind from now
/// fail, once. `watch`: neither. Each answers with the calls since the last.
fn hear() {
    for line in std::io::stdin().lock().lines() {
        let line = line.unwrap();
        let words: Vec<&str> = line.split(' ').collect();
        let mut seen = SEEN.lock().unwrap();
        let calls = std::mem::take(&mut *seen);
        let mut cut = usize::MAX;
        match words[..] {
            ["cut", n] => cut = n.parse().unwrap(),
            ["fail", kind, n, errno] => {
                let skip = if n == "0" { String::new() } else { format!("{n}*off->") };
                fail::cfg(kind, &format!("{skip}1*return({errno})->off")).unwrap();
            }
            ["watch"] => {}
            _ => panic!("{line}"),
        }
        CUT_AT.store(cut, Ordering::SeqCst);
        drop(seen);
        if words[0] != "fail" {
            watch_points();
        }
        say(&format!("seen {}", calls.join(" ")));
    }
    // The parent is gone.
    end();
}

fn say(what: &str) {
    let mut out = std::io::stdout().lock();
    // The test harness's own words stand on the same output.
    writeln!(out, "\n@{what}").unwrap();
    out.flush().unwrap();
}
