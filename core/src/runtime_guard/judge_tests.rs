use super::*;
use crate::container_runtime::{ConfigFile, Kind};

const PACKAGED: &str = "/etc/nvidia-container-runtime/config.toml";
const OPERATOR: &str = "/usr/local/nvidia/toolkit/.config/nvidia-container-runtime/config.toml";
const CONTAINERD: &str = "/etc/containerd/config.toml";

/// What `nvidia-ctk runtime configure` writes for containerd 2.
const DROP_IN: &str = "version = 3\n[plugins.'io.containerd.cri.v1.runtime'.containerd]\n\
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.nvidia]\nruntime_type = 'io.containerd.runc.v2'\n\
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.nvidia.options]\n\
    BinaryName = '/usr/bin/nvidia-container-runtime'\n";
/// What the GPU Operator writes for containerd 1.7.
const BY_OPERATOR: &str = "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".containerd]\ndefault_runtime_name = \"nvidia\"\n\
    [plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.nvidia.options]\n\
    BinaryName = \"/usr/local/nvidia/toolkit/nvidia-container-runtime\"\n";
const PLAIN: &str = "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc.options]\n\
    BinaryName = \"runc\"\nSystemdCgroup = true\n";
const CRIO: &str =
    "[crio.runtime.runtimes.nvidia]\nruntime_path = \"/usr/bin/nvidia-container-runtime\"\nruntime_type = \"oci\"\n";

const OPEN: &str = "disable-require = false\n[nvidia-container-runtime]\nmode = \"auto\"\n";
const SET: &str = "[features]\nignore-imex-channel-requests = true\n";
const PRIVILEGED_ONLY: &str = "accept-nvidia-visible-devices-envvar-when-unprivileged = false\n";
const BY_MOUNT: &str = "accept-nvidia-visible-devices-envvar-when-unprivileged = false\n\
    accept-nvidia-visible-devices-as-volume-mounts = true\n";

fn node(kind: Kind, files: &[(&str, &str)], toolkit: &[(&str, &str)]) -> Facts {
    let file = |(path, text): &(&str, &str)| ConfigFile { kind, path: (*path).into(), text: Ok((*text).into()) };
    Facts {
        container_runtime: files.iter().map(file).collect(),
        looked_for: vec![CONTAINERD.into(), "/etc/crio/crio.conf".into()],
        names: vec!["nvidia-container-runtime".into()],
        toolkit_places: vec![PACKAGED.into(), OPERATOR.into()],
        toolkit: toolkit.iter().map(|(path, text)| ((*path).to_owned(), Ok((*text).to_owned()))).collect(),
        ..Facts::default()
    }
}

fn containerd(text: &str, toolkit: &[(&str, &str)]) -> Facts {
    node(Kind::Containerd, &[(CONTAINERD, text)], toolkit)
}

/// A verdict in one word, and the file in which something is to be set.
fn said(facts: &Facts) -> (&'static str, String) {
    let verdict = judge(facts);
    let file = match &verdict {
        Verdict::Open { set, .. } => {
            let at = set.find(" in /").map_or(0, |at| at + 4);
            set[at..].split([' ', ',']).next().unwrap_or_default().to_owned()
        }
        Verdict::Unknown { why } => why.clone(),
        _ => String::new(),
    };
    (verdict.label(), file)
}

#[test]
fn nvidia_toolkit_pr_943_and_1267_the_door_is_open_unless_the_setting_is_on() {
    let cases = [
        ("the package, as it comes", containerd(DROP_IN, &[(PACKAGED, OPEN)]), "open", PACKAGED),
        ("the package, guarded", containerd(DROP_IN, &[(PACKAGED, SET)]), "closed", ""),
        ("no file at all: the defaults hold", containerd(DROP_IN, &[]), "open", PACKAGED),
        ("the operator, as it comes", containerd(BY_OPERATOR, &[(OPERATOR, OPEN)]), "open", OPERATOR),
        ("the operator, guarded", containerd(BY_OPERATOR, &[(OPERATOR, SET)]), "closed", ""),
        (
            "the operator reads its own file",
            containerd(BY_OPERATOR, &[(OPERATOR, OPEN), (PACKAGED, SET)]),
            "open",
            OPERATOR,
        ),
        ("and no other", containerd(BY_OPERATOR, &[(OPERATOR, SET), (PACKAGED, OPEN)]), "closed", ""),
        ("only privileged containers are heard", containerd(DROP_IN, &[(PACKAGED, PRIVILEGED_ONLY)]), "closed", ""),
        ("mounts are heard", containerd(DROP_IN, &[(PACKAGED, BY_MOUNT)]), "open", PACKAGED),
        (
            "CRI-O",
            node(Kind::CriO, &[("/etc/crio/crio.conf.d/99-nvidia.toml", CRIO)], &[(PACKAGED, OPEN)]),
            "open",
            PACKAGED,
        ),
        ("a runtime that is NVIDIA's nowhere", containerd(PLAIN, &[]), "not-nvidia", ""),
        ("a toolkit that makes CDI files only", containerd(PLAIN, &[(PACKAGED, OPEN)]), "not-nvidia", ""),
        (
            "a toolkit, and a runtime that nobody can see",
            node(Kind::Containerd, &[], &[(PACKAGED, OPEN)]),
            "open",
            PACKAGED,
        ),
    ];
    for (what, facts, label, file) in cases {
        assert_eq!(said(&facts), (label, file.to_owned()), "{what}");
    }
}

#[test]
fn a_drop_in_is_a_door_too() {
    let files = [(CONTAINERD, PLAIN), ("/etc/containerd/conf.d/99-nvidia.toml", DROP_IN)];
    assert_eq!(said(&node(Kind::Containerd, &files, &[(PACKAGED, OPEN)])).0, "open");
}

#[test]
fn a_hook_is_a_door_too() {
    let mut facts = node(Kind::CriO, &[("/etc/crio/crio.conf", "[crio.runtime]\n")], &[(PACKAGED, OPEN)]);
    assert_eq!(said(&facts).0, "not-nvidia");
    let hook = "/usr/share/containers/oci/hooks.d/oci-nvidia-hook.json";
    facts.hooks = vec![(hook.into(), "/usr/bin/nvidia-container-runtime-hook".into())];
    assert!(matches!(judge(&facts), Verdict::Open { why, .. } if why.contains(hook)));
}

#[test]
fn an_old_toolkit_is_open_whatever_its_file_says() {
    let mut facts = containerd(DROP_IN, &[(PACKAGED, SET)]);
    let program = "/usr/bin/nvidia-container-runtime".to_owned();
    facts.programs.insert(program.clone(), Program { config: None, knows_key: Some(true) });
    assert_eq!(judge(&facts), Verdict::Closed);
    facts.programs.insert(program, Program { config: None, knows_key: Some(false) });
    assert!(matches!(judge(&facts), Verdict::Open { set, .. } if set.contains("1.17.5")));
}

#[test]
fn a_wrapper_says_which_file_counts() {
    let mut facts = containerd(DROP_IN, &[(PACKAGED, SET), ("/opt/nv/nvidia-container-runtime/config.toml", OPEN)]);
    let config = Some("/opt/nv/nvidia-container-runtime/config.toml".to_owned());
    facts.programs.insert("/usr/bin/nvidia-container-runtime".into(), Program { config, knows_key: Some(true) });
    assert_eq!(said(&facts), ("open", "/opt/nv/nvidia-container-runtime/config.toml".into()));
}

#[test]
fn a_cdi_file_with_channels_is_a_door_to_whoever_may_name_devices() {
    let mut facts = containerd(DROP_IN, &[(PACKAGED, SET)]);
    facts.cdi_files = vec!["/var/run/cdi/management.nvidia.com-gpu.yaml".into()];
    assert!(matches!(judge(&facts), Verdict::Open { why, .. } if why.contains("management.nvidia.com-gpu.yaml")));
    let both = format!("{PRIVILEGED_ONLY}{SET}");
    facts.toolkit.insert(PACKAGED.into(), Ok(both));
    assert_eq!(judge(&facts), Verdict::Closed);
}

#[test]
fn what_cannot_be_read_is_no_answer_unless_another_door_is_open() {
    let broken = containerd("[plugins", &[(PACKAGED, SET)]);
    assert_eq!(said(&broken).0, "unknown");
    assert_eq!(said(&containerd(DROP_IN, &[(PACKAGED, "features = 1")])).0, "unknown");
    assert_eq!(said(&node(Kind::Containerd, &[], &[])).0, "unknown");
    let files = [(CONTAINERD, "[plugins"), ("/etc/containerd/conf.d/99-nvidia.toml", DROP_IN)];
    assert_eq!(said(&node(Kind::Containerd, &files, &[(PACKAGED, OPEN)])).0, "open");
    let (_, why) = said(&node(Kind::Containerd, &[], &[]));
    assert!(why.contains("/etc/crio/crio.conf"), "{why}");
}

#[test]
fn a_program_is_nvidias_by_its_name() {
    let names = vec!["nvidia-container-runtime".to_owned(), "our-wrapper".to_owned()];
    for program in ["nvidia-container-runtime", "/usr/bin/nvidia-container-runtime.cdi", "/opt/our-wrapper"] {
        assert!(is_nvidia(program, &names), "{program}");
    }
    for program in ["", "runc", "/usr/bin/nvidia-container-runtimes", "/nvidia-container-runtime/runc"] {
        assert!(!is_nvidia(program, &names), "{program}");
    }
}
