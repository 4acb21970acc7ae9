//! The node map: one name or address a line, the line's number is the node's id.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

use super::os::Os;

/// A node map as it was when the daemon started.
#[derive(Clone, Debug)]
pub struct NodeMap {
    /// The file it was read from.
    pub path: PathBuf,
    /// The lines in order.
    pub entries: Vec<String>,
}

impl NodeMap {
    /// Reads the file. The first words of the error are those of the real tool: monitoring looks for them.
    pub fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("Failed to read node configuration file {}", path.display()))?;
        let map = Self::parse(path, &text);
        // The kernel keeps a node's id in 16 bits and takes 0xFFFF for "none".
        if map.entries.is_empty() || map.entries.len() > 0xFFFF {
            bail!("Node configuration file {} has {} entries", path.display(), map.entries.len());
        }
        Ok(map)
    }

    fn parse(path: &Path, text: &str) -> Self {
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        Self { path: path.to_owned(), entries: lines.map(str::to_owned).collect() }
    }

    /// Finds this node: the first entry whose address is one of a local interface.
    pub fn own_id(&self, os: &Os) -> Result<Option<(u16, IpAddr)>> {
        let local = os.addresses()?;
        let own = |(id, entry): (usize, &String)| {
            let address = os.resolve(entry).into_iter().find(|address| local.contains(address))?;
            Some((u16::try_from(id).ok()?, address))
        };
        Ok(self.entries.iter().enumerate().find_map(own))
    }

    /// What peers compare, and what a fabric handle is stamped with: FNV-1a over the entries in their order.
    pub fn hash(&self) -> u64 {
        let bytes = self.entries.iter().flat_map(|entry| entry.bytes().chain([b'\n']));
        bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_and_spelling_make_another_map() {
        let map = |text| NodeMap::parse(Path::new("nodes"), text);
        assert_eq!(map("a\nb\n").hash(), map("# nodes\na\n\n b").hash());
        assert_ne!(map("a\nb\n").hash(), map("b\na\n").hash());
        assert_ne!(map("ab\n").hash(), map("a\nb\n").hash());
    }

    #[test]
    fn a_node_finds_itself_by_address() {
        let folder = tempfile::tempdir().unwrap();
        let os = Os::at(folder.path());
        for (file, text) in [
            ("etc/hosts", "127.10.0.1 a\n127.10.0.9 b\n127.10.0.2 b\n127.255.255.254 c\n"),
            ("net/addresses", "127.10.0.2\n::1\n"),
        ] {
            std::fs::create_dir_all(folder.path().join(file).parent().unwrap()).unwrap();
            std::fs::write(folder.path().join(file), text).unwrap();
        }
        let map = |text| NodeMap::parse(Path::new("nodes"), text);
        assert_eq!(map("a\nb\nc\n").own_id(&os).unwrap(), Some((1, "127.10.0.2".parse().unwrap())));
        assert_eq!(map("127.10.0.2\na\n").own_id(&os).unwrap(), Some((0, "127.10.0.2".parse().unwrap())));
        assert_eq!(map("a\nc\nunknown\n").own_id(&os).unwrap(), None);
    }
}
