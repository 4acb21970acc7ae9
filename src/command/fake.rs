//! The fakes at the hardware edge are this very binary under another name, so that `cargo run -- demo` builds all it
//! needs.

use std::ffi::OsString;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Parser};
use heddle_core::clique::CliqueId;
use heddle_integration::{hardware, imex};

/// Acts as one of NVIDIA's tools, without GPUs.
#[derive(Args)]
pub struct Fake {
    /// `nvidia-imex` or `nvidia-imex-ctl`; `cuda`, which shares memory by them; `imex-domain`, which makes the folders
    /// that they run in; or `hardware`, which makes that of a node of a real cluster
    tool: String,
    /// Its own arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<OsString>,
}

impl Fake {
    pub fn run(self) -> ExitCode {
        let args = [self.tool.clone().into()].into_iter().chain(self.args).collect();
        match self.tool.as_str() {
            "imex-domain" => return imex::domain_main(args),
            "hardware" => return Hardware::parse_from(args).run(),
            _ => {}
        }
        act_as(&self.tool, args).unwrap_or_else(|| {
            eprintln!(
                "heddle: there is no fake {:?}, only nvidia-imex, nvidia-imex-ctl, cuda, imex-domain and hardware",
                self.tool
            );
            ExitCode::from(2)
        })
    }
}

/// Makes a folder that stands for a node's hardware.
#[derive(Parser)]
struct Hardware {
    folder: PathBuf,
    /// The node's; UUIDs of its GPUs follow from it
    #[arg(long)]
    name: String,
    #[arg(long)]
    address: IpAddr,
    /// `<clusterUUID>.<cliqueId>`; without it there is no multi-node NVLink
    #[arg(long)]
    clique: Option<CliqueId>,
    #[arg(long, default_value_t = 4)]
    gpus: u32,
    /// Major number of IMEX channels
    #[arg(long)]
    major: u32,
    /// How many IMEX channels its kernel module has, with number 0 (NVreg_ImexChannelCount)
    #[arg(long, default_value_t = heddle_core::names::DEFAULT_CHANNEL_COUNT)]
    channels: u32,
}

impl Hardware {
    fn run(self) -> ExitCode {
        let numbers = (self.gpus, self.major, self.channels);
        let made = hardware::make(&self.folder, &self.name, self.address, self.clique.as_ref(), numbers);
        match made {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("hardware: {error:#}");
                ExitCode::FAILURE
            }
        }
    }
}

/// The exit code of the tool whose name this process was started under, if it is one.
pub fn called_by_its_name() -> Option<ExitCode> {
    let args: Vec<_> = std::env::args_os().collect();
    let tool = Path::new(args.first()?).file_name()?.to_str()?.to_owned();
    act_as(&tool, args)
}

/// `args` begin with the name that the tool was called by, as a process's own do.
fn act_as(tool: &str, args: Vec<OsString>) -> Option<ExitCode> {
    match tool {
        "nvidia-imex" => Some(imex::daemon_main(args)),
        "nvidia-imex-ctl" => Some(imex::ctl_main(args)),
        "cuda" => Some(imex::cuda_main(args)),
        _ => None,
    }
}
