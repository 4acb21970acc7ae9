//! The commands of `docs/fake-imex.md`, run as they stand there.

use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Output};
use std::time::{Duration, Instant};

use heddle_integration::imex::os::{OS_ENV, Os};
use heddle_integration::imex::scenario::Scenario;
use rustix::process::{Pid, Signal, kill_process_group};
use tempfile::TempDir;

const PAGE: &str = include_str!("../docs/fake-imex.md");
/// Only a test that fails waits for so long.
const PATIENCE: Duration = Duration::from_secs(60);

/// The code blocks of a language below a heading.
fn blocks(heading: &str, language: &str) -> Vec<&'static str> {
    let (_, section) = PAGE.split_once(&format!("\n## {heading}\n")).unwrap();
    let section = section.split("\n## ").next().unwrap();
    let fence = format!("\n```{language}\n");
    section.split(&fence).skip(1).map(|rest| rest.split("\n```").next().unwrap()).collect()
}

/// A shell in which `heddle` is the program under test. The page's addresses are those of everybody who tries it, so the test
/// takes others.
fn shell(folder: &Path, script: &str, network: u8) -> Command {
    let script = script.replace("127.0.0.", &format!("127.{network}.{}.", std::process::id() % 250 + 1));
    let programs = Path::new(env!("CARGO_BIN_EXE_heddle")).parent().unwrap();
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap());
    let mut command = Command::new("bash");
    command.args(["-euc", &script]).current_dir(folder).env("PATH", path).env_remove(OS_ENV);
    command
}

/// Ends what a shell has started, also when the test fails.
struct Group(Child);

impl Drop for Group {
    fn drop(&mut self) {
        let _ = kill_process_group(Pid::from_child(&self.0), Signal::TERM);
        let _ = self.0.wait();
    }
}

fn text(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn quick_start(heading: &str, node: &str, network: u8) {
    let folder = TempDir::with_prefix("fake").unwrap();
    let blocks = blocks(heading, "sh");
    let [start, ask] = blocks.as_slice() else { panic!("two blocks are expected below {heading:?}: {blocks:?}") };
    // The shell of a reader lives on.
    let daemons = shell(folder.path(), &format!("{start}\nwait"), network).process_group(0).spawn().unwrap();
    let mut daemons = Group(daemons);
    let begun = Instant::now();
    loop {
        let domain = format!("HEDDLE_FAKE_OS={node} heddle fake nvidia-imex-ctl -N -j");
        let asked = shell(folder.path(), &domain, network).output().unwrap();
        if String::from_utf8_lossy(&asked.stdout).ends_with("\"status\":\"UP\"}\n") {
            break;
        }
        assert!(begun.elapsed() < PATIENCE, "{asked:?}");
        assert!(daemons.0.try_wait().unwrap().is_none(), "the daemons have ended");
    }
    let answer = text(&shell(folder.path(), ask, network).output().unwrap());
    assert!(answer.starts_with("READY\n") && answer.contains("Domain State: UP\n"), "{answer}");
}

#[test]
fn two_daemons_in_the_commands_of_the_page() {
    quick_start("Quick start", "rack/0", 210);
}

#[test]
fn two_daemons_with_tls_in_the_commands_of_the_page() {
    quick_start("TLS", "secure/0", 211);
}

#[test]
fn the_scenario_of_the_page_can_be_read() {
    let blocks = blocks("Letting things go wrong", "json");
    assert_eq!(blocks.len(), 1);
    let folder = TempDir::with_prefix("fake").unwrap();
    let os = Os::at(folder.path());
    Scenario::default().write(&os).unwrap();
    std::fs::write(os.path(heddle_integration::imex::scenario::FILE), blocks[0]).unwrap();
    let scenario = Scenario::read(&os).unwrap();
    assert_ne!(scenario, Scenario::default());
    // Every field has its place on the page.
    let all = serde_json::to_value(Scenario::default()).unwrap();
    let ctl = all["ctl"].as_object().unwrap().keys().map(|field| format!("`ctl.{field}`"));
    for field in
        all.as_object().unwrap().keys().filter(|field| *field != "ctl").map(|field| format!("`{field}`")).chain(ctl)
    {
        assert!(PAGE.contains(&field), "{field} is not on the page");
    }
}
