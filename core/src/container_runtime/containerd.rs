use std::collections::BTreeSet;

use super::{Said, programs, strings};

/// The CRI plugin in config versions 1, 2 and 3 (containerd, `docs/cri/config.md`). An imported file may be of another
/// version than the one that imports it.
const CRI: [&str; 3] = ["cri", "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime"];

pub(super) fn read(table: &toml::Table) -> Said {
    let mut said = Said { imports: strings(table.get("imports")).unwrap_or_default(), ..Said::default() };
    let Some(plugins) = table.get("plugins") else { return said };
    // Everywhere: the plugin that named the runtime of config version 1 was another one.
    let mut found = BTreeSet::new();
    programs(plugins, &mut Vec::new(), &mut found);
    said.programs = found;
    for cri in CRI.iter().filter_map(|name| plugins.get(name)?.as_table()) {
        said.cri = true;
        said.enable_cdi = cri.get("enable_cdi").and_then(toml::Value::as_bool).or(said.enable_cdi);
        said.cdi_dirs = strings(cri.get("cdi_spec_dirs")).or(said.cdi_dirs);
    }
    said
}

#[cfg(test)]
mod tests {
    use super::super::{ConfigFile, Kind, merge, read};
    use super::*;

    fn said(text: &str) -> Said {
        let file =
            ConfigFile { kind: Kind::Containerd, path: "/etc/containerd/config.toml".into(), text: Ok(text.into()) };
        read(&file).unwrap()
    }

    fn nvidia(path: &str) -> BTreeSet<(String, String)> {
        BTreeSet::from([("nvidia".to_owned(), path.to_owned())])
    }

    #[test]
    fn every_config_version_is_read() {
        let one = "[plugins.cri]\nenable_cdi = true\n[plugins.cri.containerd.runtimes.nvidia]\n\
                   runtime_engine = '/usr/bin/nvidia-container-runtime'\n";
        let two = "version = 2\n[plugins.'io.containerd.grpc.v1.cri']\nenable_cdi = true\n\
                   [plugins.'io.containerd.grpc.v1.cri'.containerd.runtimes.nvidia.options]\n\
                   BinaryName = '/usr/bin/nvidia-container-runtime'\n";
        let three = "version = 3\n[plugins.'io.containerd.cri.v1.runtime']\nenable_cdi = true\n\
                     [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.nvidia.options]\n\
                     BinaryName = '/usr/bin/nvidia-container-runtime'\n";
        for text in [one, two, three] {
            let said = said(text);
            assert_eq!((said.cri, said.enable_cdi), (true, Some(true)), "{text}");
            assert_eq!(said.programs, nvidia("/usr/bin/nvidia-container-runtime"), "{text}");
        }
    }

    #[test]
    fn the_runtime_of_the_oldest_plugin_is_seen() {
        let said = said("[plugins.linux]\nruntime = 'nvidia-container-runtime'\n");
        assert_eq!(said.programs, BTreeSet::from([("runtime".to_owned(), "nvidia-container-runtime".to_owned())]));
    }

    #[test]
    fn a_later_file_wins_and_containerd_1_forgets_the_earlier_section() {
        let first = said(
            "imports = ['/etc/containerd/conf.d/*.toml']\n[plugins.'io.containerd.grpc.v1.cri']\n\
                          enable_cdi = true\ncdi_spec_dirs = ['/etc/cdi']\n",
        );
        assert_eq!(first.imports, ["/etc/containerd/conf.d/*.toml"]);
        let second = said("[plugins.'io.containerd.grpc.v1.cri']\ncdi_spec_dirs = ['/var/run/cdi']\n");
        let merged = merge([first.clone(), second.clone()], false);
        assert_eq!((merged.enable_cdi, merged.cdi_dirs), (Some(true), Some(vec!["/var/run/cdi".into()])));
        assert_eq!(merge([first, second], true).enable_cdi, None);
    }

    #[test]
    fn a_file_that_is_none_is_named_with_its_line() {
        let file = ConfigFile { kind: Kind::Containerd, path: "/c".into(), text: Ok("version = 2\n[plugins\n".into()) };
        let why = read(&file).unwrap_err();
        assert!(why.starts_with("/c line 2 is no TOML: "), "{why}");
        let file = ConfigFile { text: Err("permission denied".into()), ..file };
        assert_eq!(read(&file).unwrap_err(), "/c cannot be read: permission denied");
    }
}
