use std::fmt;

use super::Kind;

/// A container runtime and its version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// Whose.
    pub kind: Kind,
    /// Major, minor, patch.
    pub number: (u32, u32, u32),
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (major, minor, patch) = self.number;
        write!(f, "{} {major}.{minor}.{patch}", self.kind.name())
    }
}

/// A release that mends something that tenants can use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fix {
    /// The first release of this branch that has it.
    pub version: (u32, u32, u32),
    /// Its number.
    pub cve: &'static str,
    /// What a tenant can do without it.
    pub what: &'static str,
}

const ANNOTATIONS: (&str, &str) =
    ("CVE-2026-53492", "whoever may create pods can have any CDI device of the node, by a checkpoint image");
const LABELS: (&str, &str) = ("CVE-2026-53488", "an image's label can run a command on the host");

/// containerd's advisories GHSA-33vj-92qq-66hc (2.1 and newer) and GHSA-xhf5-7wjv-pqxp. The branches that are not
/// here are newer and have them, or get no fixes any more.
const FIXES: [(u32, u32, u32, (&str, &str)); 5] =
    [(1, 7, 33, LABELS), (2, 0, 10, LABELS), (2, 1, 9, ANNOTATIONS), (2, 2, 5, ANNOTATIONS), (2, 3, 2, ANNOTATIONS)];

impl Version {
    /// From `containerd://2.1.4`, as a Node's status has it, from what `containerd --version` prints, or from the bare
    /// number, which is containerd's.
    pub fn parse(text: &str) -> Option<Self> {
        let kind = if text.contains("cri-o") || text.contains("crio") { Kind::CriO } else { Kind::Containerd };
        if text.contains("://") && !text.starts_with("containerd://") && kind == Kind::Containerd {
            return None;
        }
        let words = text.split(|c: char| c.is_whitespace() || c == '/').filter(|word| !word.is_empty());
        let number = words.filter_map(number).next()?;
        Some(Self { kind, number })
    }

    /// The fix that it lacks.
    pub fn lacks(self) -> Option<Fix> {
        let (major, minor, patch) = self.number;
        if self.kind != Kind::Containerd {
            return None;
        }
        let fix = FIXES.iter().find(|fix| (fix.0, fix.1) == (major, minor)).or_else(|| {
            // A branch before the first that was mended.
            FIXES.first().filter(|first| (major, minor) < (first.0, first.1))
        });
        let (fix_major, fix_minor, fix_patch, (cve, what)) = *fix?;
        let version = (fix_major, fix_minor, fix_patch);
        ((major, minor, patch) < version).then_some(Fix { version, cve, what })
    }

    /// Whether a later file's section takes the place of an earlier one's (containerd `services/server/config`).
    pub fn replaces_sections(self) -> bool {
        self.kind == Kind::Containerd && self.number.0 < 2
    }

    /// Whether CDI is on where nothing is said: in containerd since 2.0.
    pub fn cdi_by_default(self) -> bool {
        self.kind == Kind::CriO || self.number.0 >= 2
    }
}

/// `v2.1.4`, `2.1.4`, `1.7.24~ds1`, `2.2.0-rc.1`: the leading three numbers.
fn number(word: &str) -> Option<(u32, u32, u32)> {
    let mut parts = word.strip_prefix('v').unwrap_or(word).splitn(3, '.');
    let (major, minor, rest) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?, parts.next()?);
    let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    Some((major, minor, rest[..end].parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_spellings_are_read() {
        for (text, kind, number) in [
            ("containerd://2.1.4", Kind::Containerd, (2, 1, 4)),
            ("containerd://1.7.28-0ubuntu1~22.04.1", Kind::Containerd, (1, 7, 28)),
            ("containerd://2.0.5-k3s1.32", Kind::Containerd, (2, 0, 5)),
            ("containerd github.com/containerd/containerd/v2 v2.3.2 f00d", Kind::Containerd, (2, 3, 2)),
            ("containerd github.com/containerd/containerd 1.7.24~ds1 1.7.24~ds1-6", Kind::Containerd, (1, 7, 24)),
            ("2.2.5", Kind::Containerd, (2, 2, 5)),
            ("cri-o://1.34.0", Kind::CriO, (1, 34, 0)),
        ] {
            assert_eq!(Version::parse(text), Some(Version { kind, number }), "{text}");
        }
        for text in ["", "containerd://", "docker://27.0.1", "containerd two"] {
            assert_eq!(Version::parse(text), None, "{text}");
        }
    }

    #[test]
    fn each_branch_has_its_own_minimum() {
        for (text, lacks) in [
            ("1.6.38", Some("CVE-2026-53488")),
            ("1.7.32", Some("CVE-2026-53488")),
            ("1.7.33", None),
            ("2.0.9", Some("CVE-2026-53488")),
            ("2.1.8", Some("CVE-2026-53492")),
            ("2.1.9", None),
            ("2.2.4", Some("CVE-2026-53492")),
            ("2.2.5", None),
            ("2.3.1", Some("CVE-2026-53492")),
            ("2.3.2", None),
            ("2.4.0", None),
            ("cri-o://1.30.0", None),
        ] {
            assert_eq!(Version::parse(text).unwrap().lacks().map(|fix| fix.cve), lacks, "{text}");
        }
    }
}
