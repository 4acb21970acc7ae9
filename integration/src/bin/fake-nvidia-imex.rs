//! The fake `nvidia-imex` and `nvidia-imex-ctl` for this crate's own tests; users get both from the `heddle` binary.
//! The first argument is the name that the program is called by.

use std::process::ExitCode;

fn main() -> ExitCode {
    let mut args: Vec<_> = std::env::args_os().skip(1).collect();
    match args.first_mut().map(|name| name.to_string_lossy().into_owned()).as_deref() {
        Some("nvidia-imex") => heddle_integration::imex::daemon_main(args),
        Some("nvidia-imex-ctl") => heddle_integration::imex::ctl_main(args),
        _ => {
            eprintln!("usage: fake-nvidia-imex nvidia-imex|nvidia-imex-ctl ...");
            ExitCode::from(2)
        }
    }
}
