use super::Line;
use crate::condition::enumerate;

/// IMEX daemons on the node. The kernel lets one of them have its session.
#[derive(Clone, Debug, Default)]
pub struct DaemonFacts {
    /// The host is to run the daemon.
    pub host_managed: bool,
    /// Whether processes of the host can be seen at all.
    pub visible: bool,
    /// Those that are a daemon, or have the session's capability open.
    pub processes: Vec<Process>,
}

/// A process of the host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Process {
    /// Its number.
    pub pid: u32,
    /// Its command line.
    pub command: String,
    /// It has our configuration, or our runner for a parent.
    pub ours: bool,
    /// It has the fabric-imex-mgmt capability open; none if that could not be seen.
    pub holds_session: Option<bool>,
}

pub(super) fn check(facts: &DaemonFacts) -> Line {
    let check = "foreign-imex";
    let foreign: Vec<_> = facts.processes.iter().filter(|process| !process.ours).collect();
    let told = |process: &&Process| {
        let holds = if process.holds_session == Some(true) { ", holds the kernel's IMEX session" } else { "" };
        format!("process {} ({}{holds})", process.pid, process.command)
    };
    if facts.host_managed {
        return of_host(facts, &foreign.into_iter().map(|process| told(&process)).collect::<Vec<_>>());
    }
    if !foreign.is_empty() {
        let told = enumerate(foreign.iter().map(told));
        return Line::fail(
            check,
            format!("an IMEX daemon that is not Heddle's runs: {told}"),
            "end it: systemctl disable --now nvidia-imex, or the driver that started it; the runner then starts its own",
        );
    }
    match (facts.processes.first(), facts.visible) {
        (Some(process), _) => Line::ok(check, format!("the IMEX daemon is Heddle's, process {}", process.pid)),
        (None, true) => Line::ok(check, "no IMEX daemon of somebody else runs"),
        (None, false) => {
            Line::warn(check, "the host's processes cannot be seen", "set --proc-root to the host's /proc")
        }
    }
}

/// Where the host runs the daemon, one of Heddle's is the foreign one.
fn of_host(facts: &DaemonFacts, foreign: &[String]) -> Line {
    let check = "foreign-imex";
    if let Some(ours) = facts.processes.iter().find(|process| process.ours) {
        let found = format!("an IMEX daemon of Heddle's runs, process {}, and the mode is host-managed", ours.pid);
        return Line::fail(check, found, "remove the imex-runner DaemonSet from this node, or set the mode back");
    }
    match (foreign.is_empty(), facts.visible) {
        (false, _) => Line::ok(check, format!("the host's IMEX daemon runs: {}", enumerate(foreign.iter().cloned()))),
        (true, true) => {
            Line::fail(check, "no IMEX daemon runs, and the mode is host-managed", "start nvidia-imex on the host")
        }
        (true, false) => {
            Line::warn(check, "the host's processes cannot be seen", "set --proc-root to the host's /proc")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::graded;
    use super::*;

    #[test]
    fn issue_524_and_aicr_2520_a_foreign_daemon_is_named() {
        let process =
            |pid, ours| Process { pid, command: "/usr/bin/nvidia-imex".into(), ours, holds_session: Some(!ours) };
        for (visible, processes, grade) in [
            (true, vec![], "Ok"),
            (false, vec![], "Warn"),
            (true, vec![process(7, true)], "Ok"),
            (true, vec![process(7, true), process(8, false)], "Fail"),
        ] {
            assert_eq!(
                graded(&[check(&DaemonFacts { visible, processes, host_managed: false })]),
                [format!("{grade} foreign-imex")]
            );
        }
        for (visible, processes, grade) in [
            (true, vec![], "Fail"),
            (false, vec![], "Warn"),
            (true, vec![process(8, false)], "Ok"),
            (true, vec![process(7, true), process(8, false)], "Fail"),
        ] {
            let facts = DaemonFacts { visible, processes, host_managed: true };
            assert_eq!(graded(&[check(&facts)]), [format!("{grade} foreign-imex")], "{facts:?}");
        }
        let facts = DaemonFacts { visible: true, processes: vec![process(8, false)], host_managed: false };
        let line = check(&facts);
        assert!(
            line.found.contains("process 8 (/usr/bin/nvidia-imex, holds the kernel's IMEX session)"),
            "{}",
            line.found
        );
    }
}
