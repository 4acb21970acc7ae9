use std::path::{Path, PathBuf};
use std::sync::Arc;

use heddle_core::condition::{Draft, draft};
use heddle_core::fault::{Fault, reason};
use heddle_core::imex::Identity;

use super::{CONDITION, Identities, rfc3339};
use crate::agent::Tell;
use crate::identity;
use crate::runtime::{self, Actor, Addr, Cx, Overflow, progress};
use crate::runtime_guard::Watch;
use crate::small_file;

/// Names in the folder: those of a Secret of type `kubernetes.io/tls`, as cert-manager makes it.
const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";
const AUTHORITY: &str = "ca.crt";
/// Reason of the condition while they can be used.
const READ: &str = "CertificateRead";

/// What a [`PeerFiles`] is built from.
#[derive(Clone)]
pub struct Settings {
    /// Folder with `tls.crt`, `tls.key` and `ca.crt`.
    pub folder: PathBuf,
    /// Who uses the identity.
    pub identities: Tell<Identities>,
    /// Who reports how it is.
    pub condition: Tell<Draft>,
}

/// What it is told.
#[derive(Debug)]
pub enum Message {
    /// The files were read.
    Read(Result<Identity, String>),
}

impl runtime::Message for Message {
    fn kind(&self) -> &'static str {
        match self {
            Self::Read(_) => "Read",
        }
    }

    fn overflow(&self) -> Overflow {
        Overflow::Replace
    }
}

/// Reads certificates that somebody else makes, and sees when they change.
pub struct PeerFiles {
    settings: Settings,
    said: Option<Identities>,
}

impl PeerFiles {
    /// One that has not looked yet.
    pub fn new(settings: Settings) -> Self {
        Self { settings, said: None }
    }
}

impl Actor for PeerFiles {
    const KIND: &'static str = "PeerFiles";
    type Message = Message;

    fn started(&mut self, cx: &mut Cx<'_, Self>) -> Result<(), Fault> {
        cx.spawn("watch-files", follow(self.settings.folder.clone(), cx.address()));
        Ok(())
    }

    fn handle(&mut self, message: Message, _: &mut Cx<'_, Self>) -> Result<(), Fault> {
        let Message::Read(read) = message;
        let (identities, condition) = match read {
            Ok(identity) => {
                let text = format!(
                    "{}: {} until {}",
                    self.settings.folder.display(),
                    identity.name,
                    rfc3339(identity.not_after)
                );
                let of_all = Some(Arc::new(identity));
                (Identities { of_all, ..Identities::default() }, draft(CONDITION, "True", READ, text))
            }
            Err(why) => {
                let condition = draft(CONDITION, "False", reason::NO_PEER_IDENTITY, why.clone());
                (Identities { missing_all: Some(why), ..Identities::default() }, condition)
            }
        };
        if self.said.as_ref() != Some(&identities) {
            tracing::info!(status = condition.status, "peer certificates: {}", condition.message);
            (self.settings.condition)(condition);
            (self.settings.identities)(identities.clone());
            self.said = Some(identities);
        }
        Ok(())
    }
}

/// Reads them now and after every change of the folder. A mounted Secret changes as a whole, by a link in it.
async fn follow(folder: PathBuf, address: Addr<Message>) -> Result<(), Fault> {
    loop {
        let watch = Watch::start(&[folder.clone()].into());
        address.tell(Message::Read(read(&folder, jiff::Timestamp::now().as_second())));
        progress();
        watch.changed().await;
    }
}

/// What is in the folder, if it can be used now.
fn read(folder: &Path, now: i64) -> Result<Identity, String> {
    let text = |name: &str| {
        let path = folder.join(name);
        // A Secret has at most 1 MiB, as what is small here.
        let text = small_file::open(&path).and_then(small_file::text);
        text.map_err(|error| format!("the peer certificate {} cannot be read: {error}", path.display()))
    };
    let (certificate_pem, key_pem, authority_pem) = (text(CERTIFICATE)?, text(KEY)?, text(AUTHORITY)?);
    let odd = |why: &str| format!("the peer certificate in {} cannot be used: {why}", folder.display());
    let chain = identity::chain(&certificate_pem, &authority_pem, &key_pem).map_err(|why| odd(&why))?;
    let name = chain.name().ok_or_else(|| odd("it has no name"))?.to_owned();
    if !chain.of_key {
        return Err(odd("it is of another key"));
    }
    if !chain.signed_by_authority {
        return Err(odd("no authority in ca.crt has signed it"));
    }
    if !chain.both_sides {
        return Err(odd("it is not for server and client"));
    }
    if !(chain.not_before..chain.not_after).contains(&now) {
        return Err(odd(&format!("it is valid from {} to {}", rfc3339(chain.not_before), rfc3339(chain.not_after))));
    }
    Ok(Identity { name, certificate_pem, key_pem, authority_pem, not_after: chain.not_after })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::{Authority, new_key, request};

    const NOW: i64 = 1_796_000_000;

    #[test]
    fn a_folder_is_used_whole_and_in_time() {
        let dir = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
        assert!(read(dir.path(), NOW).unwrap_err().contains("tls.crt"));
        let (authority, key) = (Authority::new("d", "", NOW).unwrap(), new_key().unwrap());
        let signed = authority.sign(&request("d", &key).unwrap(), 3600, NOW).unwrap();
        put(CERTIFICATE, &signed);
        put(KEY, &key);
        put(AUTHORITY, authority.certificate_pem());
        let identity = read(dir.path(), NOW).unwrap();
        assert_eq!((identity.name.as_str(), identity.not_after), ("d.peer.imex.heddle.dev", NOW + 3600));
        assert!(read(dir.path(), NOW + 3600).unwrap_err().contains("valid from"));
        put(KEY, &new_key().unwrap());
        assert!(read(dir.path(), NOW).unwrap_err().contains("another key"));
        put(KEY, &key);
        put(AUTHORITY, Authority::new("d", "", NOW).unwrap().certificate_pem());
        assert!(read(dir.path(), NOW).unwrap_err().contains("has signed"));
    }
}
