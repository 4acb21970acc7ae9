use super::Line;

/// The kubelet's folders for plugins.
#[derive(Clone, Debug, Default)]
pub struct KubeletFacts {
    /// For plugins' data.
    pub plugins: Folder,
    /// For registration sockets.
    pub registry: Folder,
    /// The longest socket paths that the agent would make, with the pod UID of 36 characters in their shortest form.
    pub sockets: Vec<String>,
}

/// One folder.
#[derive(Clone, Debug, Default)]
pub struct Folder {
    /// Its path.
    pub path: String,
    /// Why it cannot be used.
    pub unusable: Option<String>,
}

/// Longest path of a Unix socket, without the closing zero.
const LONGEST: usize = 107;

pub(super) fn check(facts: &KubeletFacts) -> Vec<Line> {
    let folders = [(&facts.plugins, "--kubelet-plugins-dir"), (&facts.registry, "--kubelet-registry-dir")];
    let unusable = folders.iter().find_map(|(folder, flag)| Some((folder, flag, folder.unusable.as_ref()?)));
    let folders = match unusable {
        None => Line::ok("kubelet-folders", format!("{} and {}", facts.plugins.path, facts.registry.path)),
        Some((folder, flag, why)) => Line::fail(
            "kubelet-folders",
            format!("the kubelet's folder {} cannot be used: {why}", folder.path),
            format!("is the kubelet's root another folder? set {flag}, and mount it into the agent"),
        ),
    };
    let too_long = facts.sockets.iter().find(|path| path.len() > LONGEST);
    let sockets = match too_long {
        None => Line::ok("socket-paths", "the sockets' paths are short enough"),
        Some(path) => Line::fail(
            "socket-paths",
            format!("the socket {path} has a path of {} bytes, the kernel takes {LONGEST}", path.len()),
            "give the kubelet a shorter root folder",
        ),
    };
    vec![folders, sockets]
}

#[cfg(test)]
mod tests {
    use super::super::tests::graded;
    use super::*;

    #[test]
    fn each_outcome() {
        let folder = |unusable: Option<&str>| Folder { path: "/p".into(), unusable: unusable.map(Into::into) };
        let facts = |plugins, registry, length: usize| KubeletFacts {
            plugins: folder(plugins),
            registry: folder(registry),
            sockets: vec!["s".repeat(length)],
        };
        for (facts, expected) in [
            (facts(None, None, 107), ["Ok kubelet-folders", "Ok socket-paths"]),
            (facts(None, Some("not there"), 108), ["Fail kubelet-folders", "Fail socket-paths"]),
            (facts(Some("read-only"), None, 1), ["Fail kubelet-folders", "Ok socket-paths"]),
        ] {
            assert_eq!(graded(&check(&facts)), expected);
        }
    }
}
