/// What a configuration file of the NVIDIA Container Toolkit says of requests for IMEX channels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Toolkit {
    /// `features.ignore-imex-channel-requests`: off unless it is set.
    pub ignores: bool,
    /// A container that is not privileged may ask by its environment: on unless it is switched off.
    pub by_environment: bool,
    /// It may ask by mounts: off unless it is switched on.
    pub by_mounts: bool,
}

/// The key that closes the door.
pub(super) const KEY: &str = "ignore-imex-channel-requests";

impl Toolkit {
    /// What holds where nothing is said, and where there is no file (`api/config/v1/config.go` of the toolkit).
    pub fn defaults() -> Self {
        Self { ignores: false, by_environment: true, by_mounts: false }
    }

    /// # Errors
    /// Why the text cannot be used, without its path.
    pub fn read(text: &str) -> Result<Self, String> {
        let table: toml::Table = text.parse().map_err(|error: toml::de::Error| {
            format!("it is no TOML: {}", error.message().lines().next().unwrap_or_default())
        })?;
        let flag = |table: &toml::Table, key: &str, default: bool| match table.get(key) {
            None => Ok(default),
            Some(toml::Value::Boolean(value)) => Ok(*value),
            Some(other) => Err(format!("{key} is a {}, expected true or false", other.type_str())),
        };
        let defaults = Self::defaults();
        let features = match table.get("features") {
            None => &toml::Table::new(),
            Some(toml::Value::Table(features)) => features,
            Some(_) => return Err("features is no section".into()),
        };
        let accept = "accept-nvidia-visible-devices";
        Ok(Self {
            ignores: flag(features, KEY, defaults.ignores)?,
            by_environment: flag(&table, &format!("{accept}-envvar-when-unprivileged"), defaults.by_environment)?,
            by_mounts: flag(&table, &format!("{accept}-as-volume-mounts"), defaults.by_mounts)?,
        })
    }

    /// Whether a container that is not privileged can ask for anything at all.
    pub fn hears_requests(&self) -> bool {
        self.by_environment || self.by_mounts
    }

    /// How it can ask, in words.
    pub fn ways(&self) -> &'static str {
        match (self.by_environment, self.by_mounts) {
            (true, true) => "by the variable NVIDIA_IMEX_CHANNELS or by a mount",
            (false, true) => "by a mount below /var/run/nvidia-container-devices/imex",
            _ => "by the variable NVIDIA_IMEX_CHANNELS",
        }
    }
}

/// The configuration file that a wrapper script gives its program: the GPU Operator installs the toolkit's programs
/// behind such scripts, which set one of two variables.
pub fn config_of_wrapper(script: &str) -> Option<String> {
    let value = |variable: &str| {
        let words = script.split(|c: char| c.is_whitespace() || c == ';');
        let value = words.filter_map(|word| word.strip_prefix(variable)?.strip_prefix('=')).next()?;
        Some(value.trim_matches(['"', '\'']).to_owned()).filter(|value| value.starts_with('/'))
    };
    value("NVIDIA_CTK_CONFIG_FILE_PATH")
        .or_else(|| Some(format!("{}/nvidia-container-runtime/config.toml", value("XDG_CONFIG_HOME")?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_packaged_file_leaves_the_door_open() {
        let packaged = "#accept-nvidia-visible-devices-as-volume-mounts = false\n\
                        #accept-nvidia-visible-devices-envvar-when-unprivileged = true\ndisable-require = false\n\
                        supported-driver-capabilities = \"compute,utility\"\n#swarm-resource = \"DOCKER_RESOURCE_GPU\"\n\
                        [nvidia-container-cli]\nload-kmods = true\nldconfig = \"@/sbin/ldconfig.real\"\n\
                        [nvidia-container-runtime]\nlog-level = \"info\"\nmode = \"auto\"\nruntimes = [\"runc\"]\n";
        for text in ["", packaged] {
            assert_eq!(Toolkit::read(text), Ok(Toolkit::defaults()));
        }
    }

    #[test]
    fn what_is_set_is_read() {
        let text = "accept-nvidia-visible-devices-envvar-when-unprivileged = false\n\
                    accept-nvidia-visible-devices-as-volume-mounts = true\n[features]\nignore-imex-channel-requests = true\n";
        assert_eq!(Toolkit::read(text), Ok(Toolkit { ignores: true, by_environment: false, by_mounts: true }));
        assert_eq!(Toolkit::read("features.ignore-imex-channel-requests = true").map(|t| t.ignores), Ok(true));
    }

    #[test]
    fn what_the_toolkit_would_refuse_is_no_answer() {
        for text in ["[features", "features = 1", "features.ignore-imex-channel-requests = \"true\""] {
            assert!(Toolkit::read(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_wrapper_names_its_file() {
        let operator = "#! /bin/sh\ncat /proc/modules | grep -e \"^nvidia \" >/dev/null 2>&1\n\
                        NVIDIA_CTK_CONFIG_FILE_PATH=/usr/local/nvidia/toolkit/.config/nvidia-container-runtime/config.toml \\\n\
                        PATH=/usr/local/nvidia/toolkit:$PATH \\\n\t/usr/local/nvidia/toolkit/nvidia-container-runtime.real \\\n\t\t\"$@\"\n";
        let older = "#! /bin/sh\nPATH=/usr/local/nvidia/toolkit:$PATH \\\nXDG_CONFIG_HOME=/usr/local/nvidia/toolkit/.config \\\n\
                     \t/usr/local/nvidia/toolkit/nvidia-container-runtime.real \\\n\t\"$@\"\n";
        let by_hand = "#!/bin/sh\nexport XDG_CONFIG_HOME=\"/usr/local/nvidia/toolkit/.config\"\nexec x \"$@\"\n";
        for script in [operator, older, by_hand] {
            let path = "/usr/local/nvidia/toolkit/.config/nvidia-container-runtime/config.toml";
            assert_eq!(config_of_wrapper(script).as_deref(), Some(path));
        }
        assert_eq!(config_of_wrapper("#!/bin/sh\nXDG_CONFIG_HOME=$HOME exec x\n"), None);
    }
}
