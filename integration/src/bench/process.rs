//! What a process costs, by its `/proc`.

use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use rustix::process::Pid;

/// Memory of a process, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Resident in all.
    pub resident: u64,
    /// Of that, what no file backs.
    pub anonymous: u64,
}

/// How much memory a process holds.
///
/// # Errors
/// When it has ended.
pub fn memory(pid: Pid) -> anyhow::Result<Memory> {
    let path = format!("/proc/{}/status", pid.as_raw_nonzero());
    let status = std::fs::read_to_string(&path).with_context(|| format!("{path} cannot be read"))?;
    let kib = |key: &str| -> Option<u64> {
        let line = status.lines().find_map(|line| line.strip_prefix(key))?;
        line.trim_start_matches(':').trim().trim_end_matches(" kB").parse().ok()
    };
    let read = || Some(Memory { resident: kib("VmRSS")? * 1024, anonymous: kib("RssAnon")? * 1024 });
    read().with_context(|| format!("{path} tells of no memory"))
}

/// CPU time that a process has used so far, in user and kernel mode.
///
/// # Errors
/// When it has ended.
pub fn cpu(pid: Pid) -> anyhow::Result<Duration> {
    cpu_of(Path::new(&format!("/proc/{}", pid.as_raw_nonzero())))
}

/// The same of a process or thread by its folder below `/proc`.
///
/// # Errors
/// When it has ended.
pub fn cpu_of(folder: &Path) -> anyhow::Result<Duration> {
    let path = folder.join("stat");
    let stat = std::fs::read_to_string(&path).with_context(|| format!("{} cannot be read", path.display()))?;
    let ticks = cpu_ticks(&stat).with_context(|| format!("{} tells of no CPU time", path.display()))?;
    Ok(Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64))
}

/// Fields 14 and 15 of proc(5). The second one, a name in parentheses, may have blanks and parentheses in it.
fn cpu_ticks(stat: &str) -> Option<u64> {
    let (_, rest) = stat.rsplit_once(") ")?;
    let mut fields = rest.split(' ').skip(11);
    Some(fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_blanks_does_not_shift_the_fields() {
        let stat = "7 (a ) b) S 1 7 7 0 -1 4194560 1 2 3 4 250 50 0 0 20 0 1 0 9 8 7";
        assert_eq!(cpu_ticks(stat), Some(300));
    }

    #[test]
    fn this_process_has_memory() {
        let memory = memory(rustix::process::getpid()).unwrap();
        assert!(memory.resident > memory.anonymous && memory.anonymous > 0, "{memory:?}");
        assert!(cpu(rustix::process::getpid()).is_ok());
    }
}
