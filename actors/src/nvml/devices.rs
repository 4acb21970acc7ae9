//! What the kernel module says of itself below `/proc`.

use std::path::PathBuf;

use heddle_core::fault::{Fault, reason};
use heddle_core::names::CHANNEL_MAJOR_NAME;

use crate::small_file;

/// A reader of the files below one `/proc`.
#[derive(Clone, Debug)]
pub struct Devices {
    /// `/proc`, or what stands for it.
    pub root: PathBuf,
}

impl Devices {
    /// Below this folder.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Major number of the channels' device nodes. It differs per node and per boot.
    pub fn channel_major(&self) -> Result<u32, Fault> {
        let (path, text) = self.read("devices")?;
        character_major(&text, CHANNEL_MAJOR_NAME).ok_or_else(|| {
            Fault::retryable(
                reason::NODE_IO,
                format!(
                    "{path} has no {CHANNEL_MAJOR_NAME}: the NVIDIA driver is not loaded, or its parameter \
                     NVreg_ImexChannelCount is 0; load it with a count above 1"
                ),
            )
        })
    }

    /// Channels that the kernel module serves, channel 0 included.
    pub fn channel_count(&self) -> Result<u32, Fault> {
        let (path, text) = self.read("driver/nvidia/params")?;
        let Some(value) = parameter(&text, "ImexChannelCount") else {
            return Err(Fault::retryable(
                reason::NODE_IO,
                format!(
                    "{path} has no ImexChannelCount: this NVIDIA driver knows no IMEX channels; install R570 or newer"
                ),
            ));
        };
        value.parse().map_err(|_| {
            Fault::retryable(reason::NODE_IO, format!("{path}: ImexChannelCount is {value:?}, expected a number"))
        })
    }

    /// Minor number of the capability that opens the kernel's IMEX session: `/dev/nvidia-caps/nvidia-cap<minor>`.
    pub fn imex_capability(&self) -> Result<u32, Fault> {
        let (path, text) = self.read("driver/nvidia/capabilities/fabric-imex-mgmt")?;
        let minor = parameter(&text, "DeviceFileMinor").and_then(|minor| minor.parse().ok());
        minor.ok_or_else(|| Fault::retryable(reason::NODE_IO, format!("{path} names no DeviceFileMinor")))
    }

    /// Changes with every boot.
    pub fn boot_id(&self) -> Result<String, Fault> {
        let (path, text) = self.read("sys/kernel/random/boot_id")?;
        match text.trim() {
            "" => Err(Fault::retryable(reason::NODE_IO, format!("{path} is empty"))),
            id => Ok(id.to_owned()),
        }
    }

    fn read(&self, file: &str) -> Result<(String, String), Fault> {
        let path = self.root.join(file);
        match small_file::open(&path).and_then(small_file::text) {
            Ok(text) => Ok((path.display().to_string(), text)),
            Err(error) => Err(Fault::retryable(reason::NODE_IO, format!("cannot read {}: {error}", path.display()))),
        }
    }
}

/// The major of exactly this name among the character devices: one driver's name may begin with another's.
fn character_major(devices: &str, name: &str) -> Option<u32> {
    let lines = devices.lines().skip_while(|line| line.trim() != "Character devices:").skip(1);
    lines.take_while(|line| !line.trim().is_empty()).find_map(|line| {
        let (major, found) = line.trim().split_once(' ')?;
        (found.trim() == name).then(|| major.parse().ok())?
    })
}

/// A value of `Key: value` lines; strings are quoted there.
fn parameter<'a>(params: &'a str, key: &str) -> Option<&'a str> {
    params.lines().find_map(|line| {
        let (found, value) = line.split_once(':')?;
        (found.trim() == key).then(|| value.trim().trim_matches('"'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn devices(files: &[(&str, &str)]) -> (tempfile::TempDir, Devices) {
        let folder = tempfile::tempdir().unwrap();
        for (file, text) in files {
            let path = folder.path().join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let devices = Devices::new(folder.path());
        (folder, devices)
    }

    #[test]
    fn the_major_is_that_of_the_whole_name_among_character_devices() {
        let text = "Character devices:\n  1 mem\n505 nvidia-caps\n506 nvidia-caps-imex-channels\n507 nvidia-caps-imex-channels-2\n\n\
                    Block devices:\n  8 sd\n";
        let (_folder, found) = devices(&[("devices", text)]);
        assert_eq!(found.channel_major(), Ok(506));

        let block = "Character devices:\n505 nvidia-caps\n\nBlock devices:\n506 nvidia-caps-imex-channels\n";
        let (_folder, found) = devices(&[("devices", block)]);
        let fault = found.channel_major().unwrap_err();
        assert!(fault.message.contains("NVreg_ImexChannelCount"), "{fault}");
    }

    #[test]
    fn the_count_is_the_modules_own() {
        let params = |text| devices(&[("driver/nvidia/params", text)]);
        let (_folder, found) = params("ResmanDebugLevel: 4294967295\nImexChannelCount: 64\nCreateImexChannel0: 1\n");
        assert_eq!(found.channel_count(), Ok(64));
        let (_folder, found) = params("RegistryDwords: \"\"\n");
        assert!(found.channel_count().unwrap_err().message.contains("R570"));
        let (_folder, found) = params("ImexChannelCount: many\n");
        assert!(found.channel_count().unwrap_err().message.contains("\"many\""));
    }

    #[test]
    fn files_that_are_not_what_they_should_be_are_errors_with_their_path() {
        let section = |lines: &str| format!("Character devices:\n{lines}\nBlock devices:\n  8 sd\n");
        for lines in [
            "",
            "nvidia-caps-imex-channels\n",
            "506\n",
            "x nvidia-caps-imex-channels\n",
            "-1 nvidia-caps-imex-channels\n",
            "4294967296 nvidia-caps-imex-channels\n",
            "506 nvidia-caps-imex-channels x\n",
            "506 NVIDIA-caps-imex-channels\n",
            "506 nvidia-caps-imex-channel\n",
        ] {
            let (_folder, found) = devices(&[("devices", &section(lines))]);
            assert!(found.channel_major().unwrap_err().message.contains("devices"), "{lines:?}");
        }
        let cut_off = "Character devices:\n506 nvidia-caps-imex-channels";
        assert_eq!(devices(&[("devices", cut_off)]).1.channel_major(), Ok(506), "no newline at the end");
        assert!(devices(&[("devices", "506 nvidia-caps-imex-channels\n")]).1.channel_major().is_err(), "no heading");

        for (text, count) in [
            ("ImexChannelCount: 0\n", Some(0)),
            ("ImexChannelCount: 1", Some(1)),
            ("ImexChannelCount:\t2048 \n", Some(2048)),
            ("OldImexChannelCount: 5\nImexChannelCountX: 6\n", None),
            ("ImexChannelCount 2048\n", None),
            ("ImexChannelCount:\n", None),
            ("ImexChannelCount: -1\n", None),
            ("ImexChannelCount: 99999999999\n", None),
            ("", None),
        ] {
            let (_folder, found) = devices(&[("driver/nvidia/params", text)]);
            assert_eq!(found.channel_count().ok(), count, "{text:?}");
        }

        let (folder, found) = devices(&[("sys/kernel/random/boot_id", " \n")]);
        assert!(found.boot_id().unwrap_err().message.ends_with("is empty"));
        std::fs::write(folder.path().join("devices"), [0xff, 0xfe]).unwrap();
        assert!(found.channel_major().unwrap_err().message.contains("cannot read"));
    }

    #[test]
    fn a_file_that_is_not_there_is_named() {
        let (folder, found) = devices(&[("sys/kernel/random/boot_id", "3f1c\n")]);
        assert_eq!(found.boot_id().as_deref(), Ok("3f1c"));
        let fault = found.channel_major().unwrap_err();
        assert!(fault.message.contains(&folder.path().join("devices").display().to_string()), "{fault}");
    }
}
