//! `nvidia-imex-ctl`: asks daemons how they are.

use std::ffi::OsString;
use std::io::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use tokio::net::UnixStream;
use tokio::time::timeout;

use super::config::Config;
use super::domain::Domain;
use super::nodemap::NodeMap;
use super::os::{OS_ENV, Os};
use super::scenario::Scenario;
use super::state::DaemonState;
use super::transport::{self, Stream};
use super::wire::{self, Answer, Command};

/// How often `-n` looks.
const INTERVAL: Duration = Duration::from_secs(1);

const USAGE: &str = "\
usage: nvidia-imex-ctl [-i <IP> <PORT> | -u <socket> | -c <config file>] <action>
  -q        state of the local daemon
  -s        state of the local daemon, and every change of it until the daemon ends
  -t <ms>   end -s after this time
  -N        status of all nodes of the domain; needs the configuration file
  -n        the same, again and again
  -j        JSON, with -N or -n
  -H        host names beside addresses, with -N or -n
  --version
  --help";

/// Does what the arguments ask for.
pub fn ctl_main(args: Vec<OsString>) -> ExitCode {
    let options = match Options::parse(args) {
        Ok(options) => options,
        Err(error) => {
            eprintln!("nvidia-imex-ctl: {error:#}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    match runtime.map_err(Into::into).and_then(|runtime| runtime.block_on(run_in_time(&options))) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("nvidia-imex-ctl: {error:#}");
            ExitCode::FAILURE
        }
    }
}

#[derive(Debug, PartialEq)]
enum Source {
    Address(SocketAddr),
    Socket(PathBuf),
    Config(Option<PathBuf>),
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Action {
    Query,
    Subscribe,
    Domain { again: bool },
    Version,
    Help,
}

#[derive(Debug)]
struct Options {
    source: Source,
    action: Action,
    json: bool,
    host_names: bool,
    time: Option<Duration>,
}

impl Action {
    fn letter(self) -> Option<char> {
        match self {
            Self::Query => Some('q'),
            Self::Subscribe => Some('s'),
            Self::Domain { again: false } => Some('N'),
            Self::Domain { again: true } => Some('n'),
            Self::Version | Self::Help => None,
        }
    }
}

impl Options {
    fn parse(args: Vec<OsString>) -> Result<Self> {
        let (mut source, mut action, mut json, mut host_names, mut time) = (None, None, false, false, None);
        let mut args = args.into_iter().skip(1);
        while let Some(arg) = args.next() {
            let mut value = |what: &str| args.next().with_context(|| format!("{} needs {what}", arg.display()));
            let mut number = |what: &str| -> Result<u64> {
                let text = value(what)?;
                text.to_str()
                    .and_then(|text| text.parse().ok())
                    .with_context(|| format!("{} is no {what}", text.display()))
            };
            let (mut new_source, mut new_action) = (None, None);
            match arg.to_str().unwrap_or_default() {
                "-i" => {
                    let address = value("an address")?;
                    let address: IpAddr = address.to_string_lossy().parse().context("-i needs an address")?;
                    let port = value("a port")?.to_string_lossy().parse().context("-i needs a port")?;
                    new_source = Some(Source::Address(SocketAddr::new(address, port)));
                }
                "-u" => new_source = Some(Source::Socket(value("a socket")?.into())),
                "-c" => new_source = Some(Source::Config(Some(value("a file")?.into()))),
                "-q" => new_action = Some(Action::Query),
                "-s" => new_action = Some(Action::Subscribe),
                "-N" => new_action = Some(Action::Domain { again: false }),
                "-n" => new_action = Some(Action::Domain { again: true }),
                "-j" => json = true,
                "-H" => host_names = true,
                "-t" => time = Some(Duration::from_millis(number("a number of milliseconds")?)),
                "-d" | "-m" => {
                    bail!("{} exists, but what it means is not documented, so this fake has it not", arg.display())
                }
                "--version" => new_action = Some(Action::Version),
                "--help" | "-h" => new_action = Some(Action::Help),
                other => match other.strip_prefix("--u=") {
                    Some(socket) => new_source = Some(Source::Socket(socket.into())),
                    None => bail!("unknown option {}", arg.display()),
                },
            }
            if new_source.is_some() && source.is_some() {
                bail!("only one of -i, -u and -c can be given");
            }
            if new_action.is_some() && action.is_some() {
                bail!("only one of -q, -s, -N and -n can be given");
            }
            source = source.or(new_source);
            action = action.or(new_action);
        }
        let source = source.unwrap_or(Source::Config(None));
        let action = action.context("no action given")?;
        if matches!(action, Action::Domain { .. }) && !matches!(source, Source::Config(_)) {
            bail!("-N and -n need the configuration file");
        }
        Ok(Self { source, action, json, host_names, time })
    }
}

/// Whether `-t` bounds more than `-s` is not documented; a tool that hangs has been reported, so it is not by default.
async fn run_in_time(options: &Options) -> Result<ExitCode> {
    let Some(time) = options.time else { return run(options).await };
    let bounds_all =
        Os::from_env().and_then(|os| Scenario::read(&os)).is_ok_and(|scenario| scenario.ctl.time_bounds_all);
    if options.action != Action::Subscribe && !bounds_all {
        return run(options).await;
    }
    timeout(time, run(options)).await.unwrap_or(Ok(ExitCode::SUCCESS))
}

/// Does what was asked, and says with which code to end.
async fn run(options: &Options) -> Result<ExitCode> {
    // The version and the usage are asked for before any node is set up, too.
    let scenario =
        if std::env::var_os(OS_ENV).is_some() { Scenario::read(&Os::from_env()?)? } else { Scenario::default() };
    if options.action.letter().is_some_and(|letter| scenario.ctl.hang.contains(&letter)) {
        std::future::pending::<()>().await;
    }
    match options.action {
        Action::Version => say(&format!("nvidia-imex-ctl version is: {}", scenario.version))?,
        Action::Help => say(USAGE)?,
        Action::Query => {
            let mut daemon = local(&options.source, &scenario).await?;
            wire::send(&mut daemon, &Command::State).await?;
            let state = state(wire::receive(&mut daemon).await?)?;
            say(&state.to_string())?;
            if state != DaemonState::Ready {
                return Ok(ExitCode::from(scenario.ctl.not_ready_exit));
            }
        }
        Action::Subscribe => {
            let mut daemon = local(&options.source, &scenario).await?;
            wire::send(&mut daemon, &Command::Subscribe).await?;
            while let Ok(answer) = wire::receive(&mut daemon).await {
                say(&state(answer)?.to_string())?;
            }
        }
        Action::Domain { again } => return watch(options, &scenario, again).await,
    }
    Ok(ExitCode::SUCCESS)
}

/// Shows the domain once, or again and again.
async fn watch(options: &Options, scenario: &Scenario, again: bool) -> Result<ExitCode> {
    let os = Os::from_env()?;
    let config = read_config(&options.source, &os, scenario)?;
    let map = match NodeMap::read(&config.node_map) {
        Ok(map) => map,
        // Monitoring finds this text in what a successful run has printed.
        Err(error) => {
            say(&format!("{error:#}"))?;
            return Ok(ExitCode::from(scenario.ctl.no_node_map_exit));
        }
    };
    let mut before = None;
    loop {
        let domain = Domain::ask(&os, &config, &map, options.host_names, before.as_ref()).await;
        say(&if options.json { domain.as_json(&scenario.ctl) } else { domain.as_text() })?;
        if !again {
            return Ok(ExitCode::SUCCESS);
        }
        before = Some(domain);
        tokio::time::sleep(INTERVAL).await;
    }
}

/// A closed pipe is the reader's way to say that it has seen enough, and an error all the same.
fn say(line: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}

fn state(answer: Answer) -> Result<DaemonState> {
    match answer {
        Answer::State(state) => Ok(state),
        Answer::Node { .. } => bail!("the daemon gave another answer than asked for"),
    }
}

fn read_config(source: &Source, os: &Os, scenario: &Scenario) -> Result<Config> {
    match source {
        Source::Config(Some(path)) => Config::read(path, os, scenario),
        _ => Config::read(&os.path("etc/nvidia-imex/config.cfg"), os, scenario),
    }
}

async fn local(source: &Source, scenario: &Scenario) -> Result<Box<dyn Stream>> {
    match source {
        Source::Address(address) => over_tcp(&[*address]).await,
        Source::Socket(path) => over_socket(path).await,
        Source::Config(_) => {
            let os = Os::from_env()?;
            let config = read_config(source, &os, scenario)?;
            own(&os, &config).await
        }
    }
}

/// The own daemon, by its socket or else by its port.
pub(super) async fn own(os: &Os, config: &Config) -> Result<Box<dyn Stream>> {
    match (&config.command_socket, config.command_port) {
        (Some(path), _) => over_socket(path).await,
        (None, Some(port)) => {
            let address = config.command_bind.or_else(|| os.addresses().ok()?.first().copied());
            let address = address.context("no address in net/addresses")?;
            over_tcp(&[transport::at(address, port, config.interface.as_deref())?]).await
        }
        (None, None) => bail!("neither IMEX_CMD_UNIX_DOMAIN_PATH nor IMEX_CMD_PORT is set"),
    }
}

/// The first of these addresses that answers.
pub(super) async fn over_tcp(addresses: &[SocketAddr]) -> Result<Box<dyn Stream>> {
    let stream = transport::connect(addresses).await;
    Ok(Box::new(stream.with_context(|| format!("cannot connect to the daemon at {addresses:?}"))?))
}

async fn over_socket(path: &Path) -> Result<Box<dyn Stream>> {
    let stream = UnixStream::connect(path).await;
    Ok(Box::new(stream.with_context(|| format!("cannot connect to the daemon at {}", path.display()))?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(args: &[&str]) -> Result<Options> {
        Options::parse(std::iter::once("nvidia-imex-ctl").chain(args.iter().copied()).map(OsString::from).collect())
    }

    #[test]
    fn arguments() {
        assert_eq!(options(&["-q"]).unwrap().source, Source::Config(None));
        for socket in [&["-q", "-u", "/run/x"][..], &["--u=/run/x", "-q"]] {
            assert_eq!(options(socket).unwrap().source, Source::Socket("/run/x".into()));
        }
        let address = options(&["-i", "127.0.0.1", "50005", "-q"]).unwrap().source;
        assert_eq!(address, Source::Address("127.0.0.1:50005".parse().unwrap()));
        for bad in [
            &["-j"][..],
            &["-q", "-N"],
            &["-q", "-u", "x", "-c", "y"],
            &["-N", "-u", "x"],
            &["-q", "-u"],
            &["-d"],
            &["-m"],
            &["-m"],
        ] {
            assert!(options(bad).is_err(), "{bad:?}");
        }
    }
}
