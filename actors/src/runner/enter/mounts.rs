use std::fmt::Display;
use std::path::{Path, PathBuf};

use rustix::fd::{AsFd, AsRawFd as _};
use rustix::io::Errno;
use rustix::mount::{MountFlags, mount_remount};

/// Says a failed step in words, with what to do where the error tells.
pub(super) fn failed(step: impl Display) -> impl FnOnce(Errno) -> String {
    move |error| {
        let advice = match error {
            Errno::PERM => "; the container needs the capabilities SYS_ADMIN and SYS_CHROOT",
            Errno::ACCESS => {
                "; a security profile of the container forbids it (AppArmor, SELinux): give it one that lets it mount"
            }
            Errno::NOSYS => "; that takes Linux 5.6 or later, and a seccomp profile that allows it",
            _ => "",
        };
        format!("{step}: {error}{advice}")
    }
}

/// A path that names what is open, however it was reached; as long as it is open.
pub(super) fn path_of(fd: &impl AsFd) -> String {
    format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd())
}

/// Makes one mount read-only, and leaves its other options as they are.
pub(super) fn make_read_only(mount: &Mount) -> Result<(), Errno> {
    mount_remount(&mount.point, mount.flags | MountFlags::BIND | MountFlags::RDONLY, "")
}

/// A line of `/proc/self/mountinfo`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Mount {
    pub(super) point: PathBuf,
    pub(super) flags: MountFlags,
}

/// The mounts at and below a folder.
pub(super) fn below(folder: &Path) -> Result<Vec<Mount>, String> {
    let path = "/proc/thread-self/mountinfo";
    let text = std::fs::read_to_string(path).map_err(|error| format!("{path} cannot be read: {error}"))?;
    Ok(text.lines().filter_map(parse).filter(|mount| mount.point.starts_with(folder)).collect())
}

fn parse(line: &str) -> Option<Mount> {
    let mut words = line.split(' ').skip(4);
    let point = unescape(words.next()?);
    let flag = |option: &str| match option {
        "nosuid" => MountFlags::NOSUID,
        "nodev" => MountFlags::NODEV,
        "noexec" => MountFlags::NOEXEC,
        "noatime" => MountFlags::NOATIME,
        "nodiratime" => MountFlags::NODIRATIME,
        "relatime" => MountFlags::RELATIME,
        _ => MountFlags::empty(),
    };
    let flags = words.next()?.split(',').map(flag).fold(MountFlags::empty(), |all, one| all | one);
    Some(Mount { point, flags })
}

/// The kernel writes blank, tab, line feed and backslash in octal.
fn unescape(word: &str) -> PathBuf {
    let [mut text, mut rest] = [String::new(), word.to_owned()];
    while let Some((before, after)) = rest.split_once('\\') {
        text += before;
        let code = after.get(..3).and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match code {
            Some(code) => text.push(char::from(code)),
            None => text.push('\\'),
        }
        rest = after.get(code.map_or(0, |_| 3)..).unwrap_or_default().to_owned();
    }
    (text + &rest).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_mountinfo() {
        let line = r"36 35 98:0 /mnt1 /a\040b\134c rw,nosuid,relatime master:1 - ext3 /dev/root rw,errors=continue";
        let flags = MountFlags::NOSUID | MountFlags::RELATIME;
        assert_eq!(parse(line), Some(Mount { point: r"/a b\c".into(), flags }));
        assert_eq!(parse("36 35"), None);
    }
}
