//! The fakes at the hardware edge are this very binary under another name, so that `cargo run -- demo` builds all it
//! needs.

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use clap::Args;
use heddle_integration::imex;

/// Acts as one of NVIDIA's tools, without GPUs.
#[derive(Args)]
pub struct Fake {
    /// `nvidia-imex` or `nvidia-imex-ctl`, or `imex-domain`, which makes the folders that they run in
    tool: String,
    /// Its own arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<OsString>,
}

impl Fake {
    pub fn run(self) -> ExitCode {
        let args = [self.tool.clone().into()].into_iter().chain(self.args).collect();
        if self.tool == "imex-domain" {
            return imex::domain_main(args);
        }
        act_as(&self.tool, args).unwrap_or_else(|| {
            eprintln!("heddle: there is no fake {:?}, only nvidia-imex, nvidia-imex-ctl and imex-domain", self.tool);
            ExitCode::from(2)
        })
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
        _ => None,
    }
}
