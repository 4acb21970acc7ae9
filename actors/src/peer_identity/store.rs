use std::collections::BTreeMap;
use std::path::Path;

use heddle_core::fault::Fault;
use heddle_core::identity::{Chain, is_domain_name};

use super::held::Held;
use crate::dra::{Durability, Folder, Found};
use crate::identity;

/// Its folder below the state directory.
const FOLDER: &str = "identity";
/// Behind the domain's name.
const SUFFIX: &str = ".pem";

/// Keys and certificates on the node's disk, one file a domain: key, certificate and authority are always of one another.
#[derive(Clone, Debug)]
pub(super) struct Store(Folder);

impl Store {
    pub(super) fn new(state_dir: &Path) -> Self {
        Self(Folder::new(state_dir.join(FOLDER), Durability::Durable, 0o700))
    }

    /// What was kept, as far as it can be read. What cannot is as good as lost: another is asked for.
    pub(super) fn load(&self) -> Result<BTreeMap<String, Held>, Fault> {
        self.0.sweep(|name| domain_of(name).is_some())?;
        let mut all = BTreeMap::new();
        for name in self.0.names()? {
            let Some(domain) = domain_of(&name) else { continue };
            match self.read(&name)? {
                Ok(held) => drop(all.insert(domain.to_owned(), held)),
                Err(why) => tracing::warn!(domain, "the peer certificate that was kept is not used: {why}"),
            }
        }
        Ok(all)
    }

    fn read(&self, name: &str) -> Result<Result<Held, String>, Fault> {
        Ok(match self.0.read(name)? {
            Some(Found::File(bytes)) => parse(&String::from_utf8_lossy(&bytes)),
            Some(Found::Other(what)) => Err(what),
            None => Err("it is gone".into()),
        })
    }

    pub(super) fn write(&self, domain: &str, held: &Held) -> Result<(), Fault> {
        let text = [held.key_pem.as_str(), &held.certificate_pem, &held.authority_pem].concat();
        self.0.write(&format!("{domain}{SUFFIX}"), text.as_bytes())
    }

    pub(super) fn remove(&self, domain: &str) -> Result<(), Fault> {
        self.0.remove(&format!("{domain}{SUFFIX}"))
    }
}

fn domain_of(name: &str) -> Option<&str> {
    name.strip_suffix(SUFFIX).filter(|domain| is_domain_name(domain))
}

fn parse(text: &str) -> Result<Held, String> {
    let [key_pem, certificate_pem, authority_pem] = identity::sections(text)[..] else {
        return Err("it is not key, certificate and authority".into());
    };
    let chain: Chain = identity::chain(certificate_pem, authority_pem, key_pem)?;
    let owned = |text: &str| text.to_owned();
    Ok(Held::new(owned(key_pem), owned(certificate_pem), owned(authority_pem), chain))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::identity::{Authority, new_key, request};

    fn held() -> Held {
        let (authority, key) = (Authority::new("d", "uid", 1_796_000_000).unwrap(), new_key().unwrap());
        let signed = authority.sign(&request("d", &key).unwrap(), 3600, 1_796_000_000).unwrap();
        parse(&(key + &signed)).unwrap()
    }

    #[test]
    fn what_was_kept_is_read_and_nobody_else_can() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::new(dir.path());
        assert!(store.load().unwrap().is_empty());
        store.write("d", &held()).unwrap();
        let known = store.load().unwrap();
        assert_eq!(known["d"].chain.names, ["d.peer.imex.heddle.dev"]);
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&dir.path().join("identity")), 0o700);
        assert_eq!(mode(&dir.path().join("identity/d.pem")), 0o600);
        store.remove("d").unwrap();
        assert!(store.load().unwrap().is_empty());
    }

    #[test]
    fn what_is_broken_or_foreign_is_passed_over() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::new(dir.path());
        store.write("d", &held()).unwrap();
        let folder = dir.path().join("identity");
        std::fs::write(folder.join("e.pem"), "half").unwrap();
        std::fs::write(folder.join("README"), "x").unwrap();
        std::os::unix::fs::symlink("/etc/passwd", folder.join("f.pem")).unwrap();
        assert_eq!(store.load().unwrap().into_keys().collect::<Vec<_>>(), ["d"]);
    }
}
