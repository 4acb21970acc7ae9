use super::Line;

/// The node itself.
#[derive(Clone, Debug)]
pub struct HostFacts {
    /// The boot id; or why it is not known.
    pub boot_id: Result<String, String>,
    /// Seconds since 1970 by the node's clock.
    pub now: i64,
    /// Where claims are checkpointed.
    pub state_dir: String,
    /// The type of the file system there, or of the nearest folder above it; or why it is not known.
    pub state_file_system: Result<String, String>,
}

/// 2026-01-01: Heddle is not older.
const EARLIEST: i64 = 1_767_225_600;

/// File systems that lose their files with the container or with the boot.
const FLEETING: [&str; 3] = ["tmpfs", "ramfs", "overlay"];

pub(super) fn check(facts: &HostFacts) -> Vec<Line> {
    let boot = match &facts.boot_id {
        Ok(id) => Line::ok("boot-id", format!("this boot is {id}")),
        Err(why) => Line::fail("boot-id", why, "without it no claim survives a reboot: set --proc-root"),
    };
    let clock = match facts.now >= EARLIEST {
        true => Line::ok("clock", "the clock is set"),
        false => Line::fail("clock", "the clock is before 2026", "set it: certificates are not valid yet"),
    };
    let dir = &facts.state_dir;
    let state = match &facts.state_file_system {
        Ok(kind) if FLEETING.contains(&kind.as_str()) => Line::warn(
            "state-folder",
            format!("the claims' checkpoints in {dir} are on {kind}, which does not outlive the pod or the boot"),
            "mount a folder of the host's disk, or set --state-dir",
        ),
        Ok(kind) => Line::ok("state-folder", format!("the claims' checkpoints are in {dir} on {kind}")),
        Err(why) => Line::fail("state-folder", format!("{dir}: {why}"), "create it, mount it, or set --state-dir"),
    };
    vec![boot, clock, state]
}

#[cfg(test)]
mod tests {
    use super::super::tests::graded;
    use super::*;

    #[test]
    fn each_outcome() {
        let why = || Err("not there".to_owned());
        for (boot_id, now, kind, expected) in [
            (Ok("b".to_owned()), EARLIEST, Ok("ext4".to_owned()), ["Ok boot-id", "Ok clock", "Ok state-folder"]),
            (why(), 0, Ok("tmpfs".into()), ["Fail boot-id", "Fail clock", "Warn state-folder"]),
            (why(), EARLIEST, why(), ["Fail boot-id", "Ok clock", "Fail state-folder"]),
        ] {
            let facts = HostFacts { boot_id, now, state_dir: "/s".into(), state_file_system: kind };
            assert_eq!(graded(&check(&facts)), expected);
        }
    }
}
