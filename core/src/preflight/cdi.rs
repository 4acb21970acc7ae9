use super::Line;
use crate::container_runtime::{ConfigFile, Kind, Said, Version, merge, read};

/// The container runtime, as far as it injects CDI devices.
#[derive(Clone, Debug, Default)]
pub struct CdiFacts {
    /// Its configuration files, in the order in which it reads them.
    pub files: Vec<ConfigFile>,
    /// Its version: as an operator, the Node or the program says.
    pub version: Option<String>,
    /// Where our CDI files are written, on the host.
    pub folder: String,
    /// Why nothing can be written there.
    pub unwritable: Option<String>,
}

/// Where CDI files are looked for when nothing else is said, in containerd and CRI-O alike.
const FOLDERS: [&str; 2] = ["/etc/cdi", "/var/run/cdi"];

/// The folders in which the runtime with these files looks for CDI files.
pub fn folders_of(said: &Said) -> Vec<String> {
    said.cdi_dirs.clone().unwrap_or_else(|| FOLDERS.map(str::to_owned).to_vec())
}

pub(super) fn check(facts: &CdiFacts) -> Vec<Line> {
    let version = facts.version.as_deref().and_then(Version::parse);
    let mut said = Vec::new();
    let mut unreadable = None;
    for file in &facts.files {
        match read(file) {
            Ok(read) => said.push(read),
            Err(why) => unreadable = unreadable.or(Some(why)),
        }
    }
    let said = merge(said, version.is_some_and(Version::replaces_sections));
    vec![enabled(facts, &said, unreadable, version), fixed(facts, version), folder(facts, &said)]
}

fn enabled(facts: &CdiFacts, said: &Said, unreadable: Option<String>, version: Option<Version>) -> Line {
    let check = "cdi-enabled";
    let crio = facts.files.iter().any(|file| file.kind == Kind::CriO) || version.is_some_and(|v| v.kind == Kind::CriO);
    if crio && said.enable_cdi.is_none() {
        return Line::ok(check, "CRI-O injects CDI devices always");
    }
    let file = facts.files.first().map_or("/etc/containerd/config.toml", |file| file.path.as_str());
    let advice = format!("set enable_cdi = true in the CRI section of {file} and restart containerd");
    let off = "a pod would start without its channel, or not at all";
    match (said.enable_cdi, version) {
        (Some(true), _) => Line::ok(check, "CDI is switched on in containerd"),
        (Some(false), _) => Line::fail(check, format!("CDI is switched off in containerd: {off}"), advice),
        (None, _) if unreadable.is_some() => {
            Line::warn(check, unreadable.unwrap_or_default(), "correct the file, or set --container-runtime-config")
        }
        (None, Some(version)) if version.cdi_by_default() => {
            Line::ok(check, format!("CDI is on by default in {version}"))
        }
        (None, Some(version)) => {
            Line::fail(check, format!("CDI is off by default in {version}, and not switched on: {off}"), advice)
        }
        (None, None) => Line::warn(
            check,
            "nothing says whether CDI is on: by default it is off before containerd 2.0",
            format!("{advice}, or say which version it is by --containerd-version"),
        ),
    }
}

fn fixed(facts: &CdiFacts, version: Option<Version>) -> Line {
    let check = "container-runtime";
    let Some(version) = version else {
        let said = facts.version.as_ref().map_or(String::new(), |said| format!(": {said:?} is none"));
        let found = format!("the container runtime's version is not known{said}");
        return Line::warn(check, found, "set --containerd-version, or --kubeconfig and --node-name");
    };
    let Some(fix) = version.lacks() else { return Line::ok(check, version.to_string()) };
    let (major, minor, patch) = fix.version;
    Line::fail(
        check,
        format!("{version} lacks the fix of {}: {}", fix.cve, fix.what),
        format!("update it to {major}.{minor}.{patch} or newer"),
    )
}

fn folder(facts: &CdiFacts, said: &Said) -> Line {
    let check = "cdi-folder";
    let folder = &facts.folder;
    if let Some(why) = &facts.unwritable {
        return Line::fail(
            check,
            format!("no CDI file can be written to {folder}: {why}"),
            "create it, mount it, or set --cdi-dir",
        );
    }
    let folders = folders_of(said);
    match folders.iter().any(|known| same(known, folder)) {
        true => Line::ok(check, format!("CDI files are written to {folder}")),
        false => Line::fail(
            check,
            format!("the container runtime looks for CDI files in {}, not in {folder}", folders.join(", ")),
            "set --cdi-dir to one of them that is on a tmpfs, or cdi_spec_dirs in the runtime's configuration",
        ),
    }
}

/// `/var/run` is a link to `/run` on every distribution of today.
fn same(one: &str, other: &str) -> bool {
    let plain = |path: &str| path.trim_end_matches('/').replacen("/var/run/", "/run/", 1);
    plain(one) == plain(other)
}

#[cfg(test)]
mod tests {
    use super::super::tests::graded;
    use super::*;

    fn facts(text: Option<&str>, version: Option<&str>) -> CdiFacts {
        let path = "/etc/containerd/config.toml".to_owned();
        let file = |text: &str| ConfigFile { kind: Kind::Containerd, path, text: Ok(text.into()) };
        CdiFacts {
            files: text.map(file).into_iter().collect(),
            version: version.map(Into::into),
            folder: "/run/cdi".into(),
            unwritable: None,
        }
    }

    const ON: &str = "version = 2\n[plugins.'io.containerd.grpc.v1.cri']\nenable_cdi = true\n";
    const OFF: &str = "version = 3\n[plugins.'io.containerd.cri.v1.runtime']\nenable_cdi = false\n";

    #[test]
    fn containerd_12651_and_12674_case_49_cdi_switched_off_is_found() {
        for (text, version, grade) in [
            (Some(ON), Some("1.7.33"), "Ok"),
            (Some(OFF), Some("2.3.2"), "Fail"),
            (Some("version = 2\n"), Some("1.7.33"), "Fail"),
            (Some("version = 2\n"), Some("2.3.2"), "Ok"),
            (None, Some("2.3.2"), "Ok"),
            (None, Some("1.7.33"), "Fail"),
            (Some("version = 2\n"), None, "Warn"),
            (Some("[plugins"), Some("2.3.2"), "Warn"),
            (None, Some("cri-o://1.34.0"), "Ok"),
        ] {
            let lines = check(&facts(text, version));
            assert_eq!(graded(&lines)[0], format!("{grade} cdi-enabled"), "{text:?} {version:?}");
        }
        let line = &check(&facts(Some(OFF), Some("2.3.2")))[0];
        assert!(
            line.sentence().contains("enable_cdi = true") && line.sentence().contains("/etc/containerd/config.toml")
        );
    }

    #[test]
    fn a_containerd_1_drop_in_takes_the_switch_away() {
        let mut facts = facts(Some(ON), Some("1.7.33"));
        facts.files.push(ConfigFile {
            kind: Kind::Containerd,
            path: "/etc/containerd/conf.d/99-nvidia.toml".into(),
            text: Ok(
                "version = 2\n[plugins.'io.containerd.grpc.v1.cri'.containerd]\ndefault_runtime_name = 'nvidia'\n"
                    .into(),
            ),
        });
        assert_eq!(graded(&check(&facts))[0], "Fail cdi-enabled");
        facts.version = Some("2.3.2".into());
        assert_eq!(graded(&check(&facts))[0], "Ok cdi-enabled");
    }

    #[test]
    fn cve_2026_53492_is_found_by_the_version() {
        for (version, grade) in [(Some("2.1.8"), "Fail"), (Some("2.1.9"), "Ok"), (None, "Warn"), (Some("new"), "Warn")]
        {
            let lines = check(&facts(None, version));
            assert_eq!(graded(&lines)[1], format!("{grade} container-runtime"), "{version:?}");
        }
    }

    #[test]
    fn the_runtime_must_look_where_we_write() {
        let text = |dirs: &str| format!("version = 2\n[plugins.'io.containerd.grpc.v1.cri']\ncdi_spec_dirs = {dirs}\n");
        for (dirs, grade) in [("['/etc/cdi', '/var/run/cdi']", "Ok"), ("['/run/cdi/']", "Ok"), ("['/etc/cdi']", "Fail")]
        {
            assert_eq!(graded(&check(&facts(Some(&text(dirs)), None)))[2], format!("{grade} cdi-folder"));
        }
        let unwritable = CdiFacts { unwritable: Some("read-only".into()), ..facts(None, None) };
        assert_eq!(graded(&check(&unwritable))[2], "Fail cdi-folder");
    }
}
