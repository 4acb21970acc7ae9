//! `nvidia-imex-ctl`: asks daemons how they are.

use std::ffi::OsString;
use std::io::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use futures::future::join_all;
use jiff::Zoned;
use serde_json::{Map, Value, json};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;

use super::VERSION;
use super::config::Config;
use super::nodemap::NodeMap;
use super::os::Os;
use super::state::{ConnectionState, DaemonState, DomainState};
use super::transport::Stream;
use super::wire::{self, Answer, Command};

/// How long one member's command port may take.
const MEMBER_TIMEOUT: Duration = Duration::from_secs(1);

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
    match runtime.map_err(Into::into).and_then(|runtime| runtime.block_on(run(&options))) {
        Ok(()) => ExitCode::SUCCESS,
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

async fn run(options: &Options) -> Result<()> {
    match options.action {
        Action::Version => say(&format!("nvidia-imex-ctl version is: {VERSION}")),
        Action::Help => say(USAGE),
        Action::Query => {
            let mut daemon = local(&options.source).await?;
            wire::send(&mut daemon, &Command::State).await?;
            say(&state(wire::receive(&mut daemon).await?)?.to_string())
        }
        Action::Subscribe => {
            let mut daemon = local(&options.source).await?;
            let follow = async {
                wire::send(&mut daemon, &Command::Subscribe).await?;
                while let Ok(answer) = wire::receive(&mut daemon).await {
                    say(&state(answer)?.to_string())?;
                }
                Ok(())
            };
            match options.time {
                Some(time) => timeout(time, follow).await.unwrap_or(Ok(())),
                None => follow.await,
            }
        }
        Action::Domain { again } => loop {
            let os = Os::from_env()?;
            let config = read_config(&options.source, &os)?;
            let map = NodeMap::read(&config.node_map)?;
            let nodes = ask_all(&os, &config, &map).await;
            let names: Vec<_> = map.entries.iter().map(|entry| if options.host_names { entry } else { "" }).collect();
            say(&if options.json { as_json(&nodes, &names) } else { as_text(&nodes, &names) })?;
            if !again {
                return Ok(());
            }
            tokio::time::sleep(INTERVAL).await;
        },
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

fn read_config(source: &Source, os: &Os) -> Result<Config> {
    match source {
        Source::Config(Some(path)) => Config::read(path, os),
        _ => Config::read(&os.path("etc/nvidia-imex/config.cfg"), os),
    }
}

async fn local(source: &Source) -> Result<Box<dyn Stream>> {
    match source {
        Source::Address(address) => over_tcp(*address).await,
        Source::Socket(path) => over_socket(path).await,
        Source::Config(_) => {
            let os = Os::from_env()?;
            let config = read_config(source, &os)?;
            own(&os, &config).await
        }
    }
}

/// The own daemon, by its socket or else by its port.
async fn own(os: &Os, config: &Config) -> Result<Box<dyn Stream>> {
    match (&config.command_socket, config.command_port) {
        (Some(path), _) => over_socket(path).await,
        (None, Some(port)) => {
            let address = config.command_bind.or_else(|| os.addresses().ok()?.first().copied());
            over_tcp(SocketAddr::new(address.context("no address in net/addresses")?, port)).await
        }
        (None, None) => bail!("neither IMEX_CMD_UNIX_DOMAIN_PATH nor IMEX_CMD_PORT is set"),
    }
}

async fn over_tcp(address: SocketAddr) -> Result<Box<dyn Stream>> {
    let stream =
        TcpStream::connect(address).await.with_context(|| format!("cannot connect to the daemon at {address}"))?;
    Ok(Box::new(stream))
}

async fn over_socket(path: &Path) -> Result<Box<dyn Stream>> {
    let stream = UnixStream::connect(path).await;
    Ok(Box::new(stream.with_context(|| format!("cannot connect to the daemon at {}", path.display()))?))
}

/// One member's own word.
#[derive(Debug)]
struct Node {
    host: String,
    state: DaemonState,
    version: String,
    connections: Vec<ConnectionState>,
}

/// Asks every member at its own command port: one that keeps it closed shows as unavailable, whatever its peers say.
async fn ask_all(os: &Os, config: &Config, map: &NodeMap) -> Vec<Node> {
    let own_id = map.own_id(os).ok().flatten().map(|(id, _)| usize::from(id));
    let ask = |(id, entry): (usize, &String)| {
        let address = os.resolve(entry);
        let host = address.map_or_else(|| entry.clone(), |address| address.to_string());
        async move {
            let asked = async {
                let mut daemon = if Some(id) == own_id {
                    own(os, config).await?
                } else {
                    let (address, port) = address.zip(config.command_port).context("no command port")?;
                    over_tcp(SocketAddr::new(address, port)).await?
                };
                wire::send(&mut daemon, &Command::Node).await?;
                anyhow::Ok(wire::receive(&mut daemon).await?)
            };
            match timeout(MEMBER_TIMEOUT, asked).await {
                Ok(Ok(Answer::Node { state, version, connections })) => Node { host, state, version, connections },
                _ => Node { host, state: DaemonState::Unavailable, version: String::new(), connections: Vec::new() },
            }
        }
    };
    let mut nodes = join_all(map.entries.iter().enumerate().map(ask)).await;
    for node in &mut nodes {
        node.connections.resize(map.entries.len(), ConnectionState::Invalid);
    }
    nodes
}

fn domain_state(nodes: &[Node]) -> DomainState {
    let ready = |node: &Node| node.state == DaemonState::Ready;
    let connected = |node: &Node| node.connections.iter().all(|state| *state == ConnectionState::Connected);
    if nodes.iter().all(|node| ready(node) && connected(node)) {
        DomainState::Up
    } else if nodes.iter().any(ready) {
        DomainState::Degraded
    } else {
        DomainState::Down
    }
}

/// Compact, with the domain's `status` last: a known parser takes the last `"status":` that it finds.
fn as_json(nodes: &[Node], names: &[&str]) -> String {
    let connection = |(id, state): (usize, &ConnectionState)| {
        let connection = json!({"host": nodes[id].host, "status": state, "changed": false});
        (id.to_string(), connection)
    };
    let node = |(id, node): (usize, &Node)| {
        let connections: Map<_, _> = node.connections.iter().enumerate().map(connection).collect();
        let fields = [
            ("status", json!(node.state)),
            ("host", json!(node.host)),
            ("hostName", json!(names[id])),
            ("version", json!(node.version)),
            ("connections", Value::Object(connections)),
            ("changed", json!(false)),
        ];
        format!("\"{id}\":{{{}}}", join_fields(&fields))
    };
    let nodes_text: Vec<String> = nodes.iter().enumerate().map(node).collect();
    let timestamp = json!(Zoned::now().strftime("%-m/%-d/%Y %H:%M:%S.%3f").to_string());
    let status = json!(domain_state(nodes));
    format!("{{\"nodes\":{{{}}},\"timestamp\":{timestamp},\"status\":{status}}}", nodes_text.join(","))
}

fn join_fields(fields: &[(&str, Value)]) -> String {
    fields.iter().map(|(key, value)| format!("\"{key}\":{value}")).collect::<Vec<_>>().join(",")
}

fn as_text(nodes: &[Node], names: &[&str]) -> String {
    let mut text = String::from(
        "Connectivity Table Legend:\nI - Invalid - Node wasn't reachable, no connection status available\n\
         N - Never Connected\nR - Recovering - Connection was lost, but clean up has not yet been triggered.\n\
         D - Disconnected - Connection was lost, and clean up has been triggreed.\nA - Authenticating\n\
         !V! - Version mismatch, communication disabled.\n!M! - Node map mismatch, communication disabled.\n\
         C - Connected - Ready for operation\n\n",
    )
    .replace("triggreed", "triggered");
    text += &format!("{}\nNodes:\n", Zoned::now().strftime("%-m/%-d/%Y %H:%M:%S.%3f"));
    for (id, node) in nodes.iter().enumerate() {
        let name = if names[id].is_empty() { String::new() } else { format!(" ({})", names[id]) };
        text += &format!("Node #{id:<3} - {}{name} - {} - Version: {}\n", node.host, node.state, node.version);
    }
    text += "\n Nodes From\\To ";
    for id in 0..nodes.len() {
        text += &format!(" {id:<3}");
    }
    for (id, node) in nodes.iter().enumerate() {
        text += &format!("\n       {id:<8}");
        for state in &node.connections {
            text += &format!(" {:<3}", state.letters());
        }
    }
    text + &format!("\nDomain State: {}", domain_state(nodes))
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
        for bad in
            [&["-j"][..], &["-q", "-N"], &["-q", "-u", "x", "-c", "y"], &["-N", "-u", "x"], &["-q", "-u"], &["-d"]]
        {
            assert!(options(bad).is_err(), "{bad:?}");
        }
    }

    fn node(state: DaemonState, connections: &[ConnectionState]) -> Node {
        Node { host: "127.10.0.1".into(), state, version: VERSION.into(), connections: connections.to_vec() }
    }

    #[test]
    fn a_domain_is_up_only_with_every_line_of_the_map() {
        use ConnectionState::{Connected, Invalid, NeverConnected};
        let up = node(DaemonState::Ready, &[Connected, Connected]);
        assert_eq!(domain_state(&[up, node(DaemonState::Ready, &[Connected, Connected])]), DomainState::Up);
        let alone = || node(DaemonState::Ready, &[Connected, NeverConnected]);
        let gone = || node(DaemonState::Unavailable, &[Invalid, Invalid]);
        assert_eq!(domain_state(&[alone(), gone()]), DomainState::Degraded);
        assert_eq!(domain_state(&[gone(), gone()]), DomainState::Down);
    }

    #[test]
    fn json_is_compact_and_ends_with_the_status() {
        use ConnectionState::{Connected, MapMismatch};
        let nodes = [node(DaemonState::Ready, &[Connected, MapMismatch])];
        let mut nodes = Vec::from(nodes);
        nodes.push(node(DaemonState::Unavailable, &[ConnectionState::Invalid, ConnectionState::Invalid]));
        let text = as_json(&nodes, &["", ""]);
        assert!(text.ends_with(r#""status":"DEGRADED"}"#), "{text}");
        let parsed: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(parsed["nodes"]["0"]["connections"]["1"]["status"], "MAP_MISMATCH");
        assert_eq!(parsed["nodes"]["1"]["status"], "UNAVAILABLE");
        assert!(as_text(&nodes, &["", ""]).contains("!M!"));
    }
}
