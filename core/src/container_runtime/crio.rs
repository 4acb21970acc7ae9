use std::collections::BTreeSet;

use super::{Said, programs, strings};

/// `crio.conf(5)`. CRI-O has injected CDI devices since 1.23 and has no switch for it.
pub(super) fn read(table: &toml::Table) -> Said {
    let mut said = Said::default();
    let Some(runtime) = table.get("crio").and_then(|crio| crio.get("runtime")) else { return said };
    let mut found = BTreeSet::new();
    programs(runtime, &mut Vec::new(), &mut found);
    said.programs = found;
    said.cri = true;
    said.cdi_dirs = strings(runtime.get("cdi_spec_dirs"));
    said.hooks_dirs = strings(runtime.get("hooks_dir")).unwrap_or_default();
    said
}

#[cfg(test)]
mod tests {
    use super::super::{ConfigFile, Kind, read};
    use super::*;

    #[test]
    fn runtimes_hooks_and_cdi_folders_are_read() {
        let text = "[crio.runtime]\ndefault_runtime = 'crun'\nhooks_dir = ['/etc/containers/oci/hooks.d']\n\
                    cdi_spec_dirs = ['/etc/cdi']\n[crio.runtime.runtimes.crun]\nruntime_path = '/usr/bin/crun'\n\
                    [crio.runtime.runtimes.nvidia]\nruntime_path = '/usr/bin/nvidia-container-runtime'\n";
        let said = read(&ConfigFile { kind: Kind::CriO, path: "/c".into(), text: Ok(text.into()) }).unwrap();
        let named = |(name, path): (&str, &str)| (name.to_owned(), path.to_owned());
        let programs = [("crun", "/usr/bin/crun"), ("nvidia", "/usr/bin/nvidia-container-runtime")];
        assert_eq!(said.programs, BTreeSet::from(programs.map(named)));
        assert_eq!(said.hooks_dirs, ["/etc/containers/oci/hooks.d"]);
        assert_eq!(said.cdi_dirs, Some(vec!["/etc/cdi".into()]));
    }
}
