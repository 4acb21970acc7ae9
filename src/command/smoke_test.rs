use std::fs::{self, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::Args;
use heddle_core::names;

/// Succeeds in a container that has exactly one channel and may open it, or is on a node that has none to give.
#[derive(Args)]
pub struct SmokeTest {
    /// Folder of the channels' device nodes
    #[arg(long, default_value = names::CHANNEL_DEVICE_DIR)]
    dir: PathBuf,
}

impl SmokeTest {
    pub fn run(self) -> anyhow::Result<()> {
        if std::env::var(names::NO_CHANNEL_ENV).is_ok_and(|value| value == "none") {
            println!("this node has no NVLink fabric, so the claim gives no channel");
            return Ok(());
        }
        let channel = only_channel(&self.dir)?;
        may_open(&channel)?;
        println!("{} is there and opens", channel.display());
        Ok(())
    }
}

fn only_channel(dir: &Path) -> anyhow::Result<PathBuf> {
    let entries =
        fs::read_dir(dir).with_context(|| format!("{} cannot be read: no channel was given", dir.display()))?;
    let mut channels: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    match (channels.pop(), channels.len()) {
        (Some(channel), 0) => Ok(channel),
        (None, _) => bail!("{} is empty: no channel was given", dir.display()),
        (Some(_), others) => bail!("{} has {} channels, and only one was asked for", dir.display(), others + 1),
    }
}

/// The device cgroup refuses with EPERM what the claim does not give. Whatever else the device says, it was asked.
fn may_open(channel: &Path) -> anyhow::Result<()> {
    let found = fs::metadata(channel).with_context(|| format!("{} cannot be looked at", channel.display()))?;
    if !found.file_type().is_char_device() {
        bail!("{} is no device", channel.display());
    }
    let nonblock = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    match OpenOptions::new().read(true).write(true).custom_flags(nonblock).open(channel) {
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            Err(error).with_context(|| format!("{} may not be opened", channel.display()))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_device_and_nothing_else_will_do() {
        let dir = tempfile::tempdir().unwrap();
        let said = |dir: &Path| only_channel(dir).unwrap_err().to_string();
        assert!(said(&dir.path().join("absent")).contains("no channel was given"));
        assert!(said(dir.path()).contains("is empty"));
        let channel = dir.path().join("channel3");
        std::os::unix::fs::symlink("/dev/null", &channel).unwrap();
        assert_eq!(only_channel(dir.path()).unwrap(), channel);
        may_open(&channel).unwrap();
        let second = dir.path().join("channel4");
        fs::write(&second, "").unwrap();
        assert!(said(dir.path()).contains("has 2 channels"));
        assert!(may_open(&second).unwrap_err().to_string().contains("is no device"));
    }
}
