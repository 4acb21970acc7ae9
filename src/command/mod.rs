//! The command line.

mod agent;
#[cfg(feature = "demo")]
mod bench;
mod channel;
mod client;
mod controller;
mod crds;
#[cfg(feature = "demo")]
mod demo;
#[cfg(feature = "demo")]
pub mod fake;
mod host;
mod imex_enter;
mod imex_runner;
mod node;
mod peers;
mod preflight;
mod smoke_test;
mod uninstall_check;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::logging;

/// Lets several ComputeDomains share a node of an NVLink rack, kept apart by IMEX channels.
#[derive(Parser)]
#[command(name = "heddle", version, propagate_version = true, max_term_width = 110)]
#[command(after_help = "Try it on this machine, without GPUs or Kubernetes:  heddle demo")]
struct Cli {
    /// How log lines on standard error look
    #[arg(long, global = true, value_enum, default_value = "text", env = "HEDDLE_LOG_FORMAT")]
    log_format: logging::Format,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Play ComputeDomains sharing nodes, on an embedded cluster with fake GPUs
    #[cfg(feature = "demo")]
    Demo(demo::Demo),
    /// Measure what Heddle costs, beside its budgets
    #[cfg(feature = "demo")]
    Bench(bench::Bench),
    /// Serve one node: claims, slots, GPUs and its IMEX daemon's domain
    Agent(Box<agent::Agent>),
    /// Own the node's nvidia-imex process, so that it outlives agents
    ImexRunner(imex_runner::ImexRunner),
    /// Manage ComputeDomains and the membership of IMEX domains, once per cluster
    Controller(controller::Controller),
    /// Check a node from the driver up to the kubelet, and say what to do
    Preflight(Box<preflight::Preflight>),
    /// Show the IMEX channels in use, and give back those of nodes that are lost for good
    Channel(channel::Channel),
    /// Print the CustomResourceDefinitions, apply them, or compare them with a cluster's
    Crds(crds::Crds),
    #[command(hide = true)]
    ImexEnter(imex_enter::ImexEnter),
    /// Say what of Heddle is in use; an error while anything is
    UninstallCheck(uninstall_check::UninstallCheck),
    /// Look for the one channel of this container, as `helm test` does
    #[command(hide = true)]
    SmokeTest(smoke_test::SmokeTest),
    #[cfg(feature = "demo")]
    #[command(hide = true)]
    Fake(fake::Fake),
}

/// Parses the command line and runs what it says. Exit code 2 is a wrong command line or a bad file, 1 any other
/// failure.
pub fn run() -> ExitCode {
    let cli = Cli::parse();
    let level = match &cli.command {
        #[cfg(feature = "demo")]
        Command::Demo(_) | Command::Bench(_) => "error",
        Command::Preflight(_) | Command::Channel(_) | Command::Crds(_) => "error",
        Command::ImexRunner(runner) => &runner.log_filter(),
        _ => "info",
    };
    let serves = matches!(cli.command, Command::Agent(_) | Command::ImexRunner(_) | Command::Controller(_));
    logging::start(cli.log_format, level, serves);
    let result = match cli.command {
        #[cfg(feature = "demo")]
        Command::Demo(demo) => return demo.run(),
        #[cfg(feature = "demo")]
        Command::Fake(fake) => return fake.run(),
        #[cfg(feature = "demo")]
        Command::Bench(bench) => bench.run(),
        Command::Agent(agent) => agent.run(),
        Command::Preflight(preflight) => return preflight.run(),
        Command::ImexEnter(enter) => return enter.run(),
        Command::ImexRunner(runner) => runner.run(),
        Command::Controller(controller) => controller.run(),
        Command::Channel(channel) => channel.run(),
        Command::Crds(crds) => crds.run(),
        Command::UninstallCheck(check) => check.run(),
        Command::SmokeTest(test) => test.run(),
    };
    let fault = result.err().map(|error| sentence(&error));
    logging::end(fault.as_deref());
    if fault.is_none() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// An error and its causes in one line. Causes may be told by what they caused already, and some draw pictures below
/// their first line.
fn sentence(error: &anyhow::Error) -> String {
    let mut told = String::new();
    for cause in error.chain() {
        let cause = cause.to_string();
        let line = cause.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
        if told.contains(line) {
            continue;
        }
        if !told.is_empty() {
            told.push_str(": ");
        }
        told.push_str(line);
    }
    told
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        <Cli as clap::CommandFactory>::command().debug_assert();
    }

    #[test]
    fn an_error_is_one_line_and_says_nothing_twice() {
        let error = anyhow!("\nline 1: no mapping\n  | ^ here")
            .context("cannot parse: line 1: no mapping")
            .context("kc is no kubeconfig");
        assert_eq!(sentence(&error), "kc is no kubeconfig: cannot parse: line 1: no mapping");
    }
}
