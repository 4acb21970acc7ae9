//! What a person sees while the demo works.

use std::io::Write;
use std::time::{Duration, Instant};

use super::Options;
use super::cluster::Cluster;

/// Prints progress and pictures, and keeps the timings.
pub struct Stage {
    json: bool,
    colour: bool,
    began: Instant,
    timings: Vec<(&'static str, Duration)>,
    problems: Vec<String>,
}

impl Stage {
    /// Nothing has happened yet.
    pub fn new(options: &Options) -> Self {
        Self {
            json: options.json,
            colour: options.colour,
            began: Instant::now(),
            timings: Vec::new(),
            problems: Vec::new(),
        }
    }

    /// When it all began.
    pub fn began(&self) -> Instant {
        self.began
    }

    /// Whether pictures have colours.
    pub fn colour(&self) -> bool {
        self.colour
    }

    /// A step, as it begins or ends. With `--json` it goes to standard error: the document stands alone.
    pub fn say(&self, text: &str) {
        let line = format!("{:>6.2}s  {text}", self.began.elapsed().as_secs_f64());
        // A reader that went away must not end the demo half-way: it cleans up after itself at the end.
        let _ = if self.json { writeln!(std::io::stderr(), "{line}") } else { writeln!(std::io::stdout(), "{line}") };
    }

    /// A picture, or other lines for the reader of the terminal.
    pub fn show(&self, text: &str) {
        if !self.json {
            let _ = writeln!(std::io::stdout(), "\n{text}");
        }
    }

    /// The final document.
    pub fn document(&self, text: &str) {
        let _ = writeln!(std::io::stdout(), "{text}");
    }

    /// How long a part took.
    pub fn time(&mut self, what: &'static str, since: Instant) {
        self.timings.push((what, since.elapsed()));
    }

    /// All timings, the whole time last.
    pub fn timings(&self) -> Vec<(&'static str, Duration)> {
        let whole = ("totalMs", self.began.elapsed());
        self.timings.iter().copied().chain([whole]).collect()
    }

    /// Something asserted did not hold.
    pub fn problem(&mut self, text: String) {
        self.say(&format!("NOT AS EXPECTED: {text}"));
        self.problems.push(text);
    }

    /// All that did not hold.
    pub fn problems(&self) -> &[String] {
        &self.problems
    }

    /// How to reach the cluster.
    pub fn serving(&self, cluster: &Cluster) {
        self.say(&format!(
            "the cluster goes on until Ctrl-C:\n\n  export KUBECONFIG={}\n  kubectl get computedomains,pods -A\n",
            cluster.kubeconfig().display()
        ));
    }
}
