//! `heddle fake cuda`: the part of a CUDA program that shares memory, as a program for containers of a real cluster.
//!
//! It opens its channel's device node as CUDA does: what the device cgroup refuses is refused here.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use rustix::io::Errno;

use super::cuda::{Cuda, Handle};
use super::os::OS_ENV;

const CHANNELS: &str = "/dev/nvidia-caps-imex-channels";

/// Majors that every machine has and that stand for the channels' on the testbed: terminals, and their contents.
const SUBSTITUTES: [u32; 2] = [4, 7];

const USAGE: &str = "\
usage: cuda export            exports memory, prints its handle, and holds it until standard input ends
       cuda import HANDLE...  imports the memory of each handle; says for each what came of it
       cuda hold HANDLE       imports the memory, and says at each line of standard input whether it is still there
       cuda channel           prints major and minor of the channel that it can open";

/// Acts as the program.
pub fn cuda_main(args: Vec<OsString>) -> ExitCode {
    let args: Vec<String> = args.into_iter().skip(1).map(|arg| arg.to_string_lossy().into_owned()).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let run = runtime.context("no runtime").and_then(|runtime| runtime.block_on(run(&args)));
    match run {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("cuda: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Whether all that was asked for was allowed.
async fn run(args: &[String]) -> Result<bool> {
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["channel"] => {
            let (major, minor) = channel(Path::new(CHANNELS))?.context("there is no channel here")?;
            println!("{major}:{minor}");
            Ok(true)
        }
        ["export"] => {
            let mut cuda = begin()?;
            println!("{}", cuda.export().await?);
            std::io::stdout().flush()?;
            // Exports end with their process.
            tokio::task::spawn_blocking(|| std::io::copy(&mut std::io::stdin(), &mut std::io::sink())).await??;
            Ok(true)
        }
        ["import", ref handles @ ..] if !handles.is_empty() => {
            let mut cuda = begin()?;
            let mut all = true;
            for text in handles {
                let handle: Handle =
                    text.to_string().try_into().ok().with_context(|| format!("{text} is no handle"))?;
                match cuda.import(&handle).await {
                    Ok(()) => println!("{text} imported"),
                    Err(error) => {
                        all = false;
                        println!("{text} refused: {error}");
                    }
                }
            }
            Ok(all)
        }
        ["hold", handle] => {
            hold(&handle.to_owned().try_into().ok().with_context(|| format!("{handle} is no handle"))?).await
        }
        _ => bail!("{USAGE}"),
    }
}

/// Whether the memory was there each time that it was asked for.
async fn hold(handle: &Handle) -> Result<bool> {
    let mut cuda = begin()?;
    cuda.import(handle).await?;
    println!("imported");
    let mut all = true;
    for line in std::io::stdin().lines() {
        line?;
        match cuda.holds(handle).await {
            Ok(()) => println!("held"),
            Err(error) => {
                all = false;
                println!("lost: {error}");
            }
        }
    }
    Ok(all)
}

fn begin() -> Result<Cuda> {
    let os = std::env::var_os(OS_ENV).map_or_else(|| PathBuf::from("/"), PathBuf::from);
    Ok(Cuda::open(&os, channel(Path::new(CHANNELS))?)?)
}

/// Major and minor of the channel in the folder, once it was opened; none without one. CUDA takes one of several; here
/// that is an error, as there must be only one.
fn channel(folder: &Path) -> Result<Option<(u32, u32)>> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Ok(None) };
    let mut nodes: Vec<PathBuf> = entries.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    nodes.sort();
    let [node] = &nodes[..] else {
        if nodes.is_empty() {
            return Ok(None);
        }
        bail!("there are {} channels in {}", nodes.len(), folder.display());
    };
    // What stands behind the substitute's number may be a terminal.
    let flags = rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::NOCTTY;
    let file = OpenOptions::new().read(true).write(true).custom_flags(flags.bits() as i32).open(node);
    let metadata = match file {
        Ok(file) => file.metadata()?,
        Err(error) => match std::fs::metadata(node) {
            Ok(metadata) if is_let_through(rustix::fs::major(metadata.rdev()), &error) => metadata,
            _ => return Err(error).with_context(|| format!("{} cannot be opened", node.display())),
        },
    };
    if !metadata.file_type().is_char_device() {
        bail!("{} is no character device", node.display());
    }
    let device = metadata.rdev();
    Ok(Some((rustix::fs::major(device), rustix::fs::minor(device))))
}

/// Whether the kernel would have let the container open it, and its driver has no device of this number: terminals end at
/// 63. The device cgroup is asked before the driver, and says EPERM.
fn is_let_through(major: u32, error: &std::io::Error) -> bool {
    let of_driver = [Errno::NXIO, Errno::NODEV, Errno::IO, Errno::OPNOTSUPP];
    SUBSTITUTES.contains(&major)
        && error.raw_os_error().is_some_and(|n| of_driver.contains(&Errno::from_raw_os_error(n)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_substitutes_driver_may_lack_the_number() {
        let said = |errno: Errno| std::io::Error::from(errno);
        assert!(is_let_through(4, &said(Errno::NXIO)) && is_let_through(7, &said(Errno::OPNOTSUPP)));
        assert!(!is_let_through(4, &said(Errno::PERM)) && !is_let_through(4, &said(Errno::ACCESS)));
        assert!(!is_let_through(505, &said(Errno::NXIO)), "the real driver has all of its numbers");
    }

    #[test]
    fn a_folder_has_no_channel_one_or_too_many() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(channel(&folder.path().join("absent")).unwrap(), None);
        assert_eq!(channel(folder.path()).unwrap(), None);
        std::os::unix::fs::symlink("/dev/null", folder.path().join("channel3")).unwrap();
        assert_eq!(channel(folder.path()).unwrap(), Some((1, 3)));
        std::fs::write(folder.path().join("channel4"), "").unwrap();
        assert!(channel(folder.path()).unwrap_err().to_string().contains("2 channels"));
        std::fs::remove_file(folder.path().join("channel3")).unwrap();
        assert!(channel(folder.path()).unwrap_err().to_string().contains("no character device"));
    }
}
