use std::fmt::Write as _;
use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use super::place::Inside;
use super::{CONFIG_DIR, Root};

/// Where the driver root's own `/etc` is seen: in the same depth, so that relative links in it lead where they should.
const DRIVERS: &str = "/etc.driver";

const HOSTS: &str = "hosts";
const RESOLVER: &str = "resolv.conf";
const SWITCH: &str = "nsswitch.conf";

/// Puts together an `/etc` of links to the driver root's, but for what decides how names are found. Nothing need exist
/// there, and nothing is written there.
pub(super) fn compose(new: &Inside, new_path: &Path, driver_root: &Inside, root: &Root) -> Result<(), String> {
    new.folder(Path::new("/etc"))?;
    let etc = new_path.join("etc");
    let told = |error: std::io::Error| format!("the daemon's /etc cannot be put together: {error}");
    if let Some(drivers) = driver_root.get(Path::new("etc"))? {
        new.bind(drivers, Path::new("the driver root's /etc"), Path::new(DRIVERS))?;
        for entry in fs::read_dir(new_path.join(&DRIVERS[1..])).map_err(told)? {
            let name = entry.map_err(told)?.file_name();
            if [HOSTS, RESOLVER, SWITCH].iter().all(|ours| name != *ours) && !root.has_of_the_host(&name) {
                symlink(from_etc(DRIVERS).join(&name), etc.join(&name)).map_err(told)?;
            }
        }
    }
    // By way of the folder: the file is replaced as a whole when an address changes.
    if root.host.is_none() {
        symlink(from_etc(CONFIG_DIR).join(HOSTS), etc.join(HOSTS)).map_err(told)?;
    }
    fs::write(etc.join(RESOLVER), resolver(&root.nameservers)).map_err(told)?;
    fs::write(etc.join(SWITCH), switch(&root.nameservers)).map_err(told)
}

/// So that it can also be followed by who looks from outside, through `/proc/<pid>/root`.
fn from_etc(path: &str) -> PathBuf {
    Path::new("..").join(path.trim_start_matches('/'))
}

/// No search path: a name that is not known would be asked for once more in each of its domains (upstream 1465).
fn resolver(nameservers: &[IpAddr]) -> String {
    let head =
        "# Written by heddle imex-runner. Names are those of /etc/hosts.\noptions timeout:1 attempts:1\n".to_owned();
    nameservers.iter().fold(head, |mut text, address| {
        let _ = writeln!(text, "nameserver {address}");
        text
    })
}

fn switch(nameservers: &[IpAddr]) -> String {
    // Without a server in the file above, a C library would ask one on this machine.
    let dns = if nameservers.is_empty() { "" } else { " dns" };
    format!(
        "# Written by heddle imex-runner.\npasswd: files\ngroup: files\nshadow: files\nhosts: files{dns}\n\
         networks: files\nprotocols: files\nservices: files\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_looked_for_in_files_first_and_elsewhere_if_it_is_wanted() {
        assert!(switch(&[]).contains("\nhosts: files\n") && !resolver(&[]).contains("nameserver"));
        let server = ["10.0.0.53".parse().unwrap()];
        assert!(switch(&server).contains("\nhosts: files dns\n"));
        let text = resolver(&server);
        assert!(text.ends_with("\nnameserver 10.0.0.53\n") && !text.contains("search"), "{text}");
    }
}
