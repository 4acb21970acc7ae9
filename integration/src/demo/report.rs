//! The end: what was asserted, the timings, the document.

use std::collections::BTreeMap;

use serde::Serialize;

use super::Options;
use super::audit::Audit;
use super::cluster::Cluster;
use super::isolation::{self, Attempt};
use super::snapshot::{ComputeDomainView, PodView, Snapshot};
use super::stage::Stage;

/// The document that `--json` prints.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Report {
    compute_domains: Vec<ComputeDomainView>,
    pods: Vec<PodView>,
    isolation: Vec<Attempt>,
    invariants: BTreeMap<&'static str, bool>,
    timings: BTreeMap<&'static str, u128>,
    problems: Vec<String>,
    ok: bool,
}

/// Tries the isolation, checks the invariants, and says how it all ended. The answer is whether everything held.
///
/// # Errors
/// When the cluster cannot be asked.
pub async fn finish(
    cluster: &Cluster,
    options: &Options,
    stage: &mut Stage,
    audit: &mut Audit,
) -> anyhow::Result<bool> {
    let began = std::time::Instant::now();
    let snapshot = Snapshot::take(&cluster.client()).await?;
    let pods = snapshot.pods(&cluster.channels());
    let attempts = isolation::attempt_all(cluster, &snapshot).await?;
    stage.time("isolationMs", began);
    for attempt in attempts.iter().filter(|attempt| attempt.import_allowed != attempt.expected) {
        stage.problem(format!("import by {} of memory of {}: {}", attempt.to, attempt.from, attempt.answer));
    }
    if !attempts.is_empty() {
        let across = attempts.iter().filter(|attempt| !attempt.same_compute_domain).count();
        stage.say(&format!(
            "{} through the IMEX daemons, {across} of them between ComputeDomains",
            if attempts.len() == 1 {
                "one import was tried".into()
            } else {
                format!("{} imports were tried", attempts.len())
            },
        ));
        stage.show(&isolation::table(&attempts));
    }
    audit.look(cluster.nodes()).await?;
    let report = audit.report(&Snapshot::take(&cluster.client()).await?);
    for violation in report.all() {
        stage.problem(violation.to_string());
    }
    let invariants = BTreeMap::from([
        ("S1", report.s1.is_empty()),
        ("S2", report.s2.is_empty()),
        ("S3", report.s3.is_empty()),
        ("S4", report.s4.is_empty()),
    ]);
    let ok = stage.problems().is_empty();
    let timings = stage.timings();
    if options.json {
        let report = Report {
            compute_domains: snapshot.compute_domains(),
            pods,
            isolation: attempts,
            invariants,
            timings: timings.iter().map(|(name, time)| (*name, time.as_millis())).collect(),
            problems: stage.problems().to_vec(),
            ok,
        };
        stage.document(&serde_json::to_string_pretty(&report)?);
    } else {
        let parts: Vec<_> =
            timings.iter().map(|(name, time)| format!("{} {:.2} s", words(name), time.as_secs_f64())).collect();
        let held: Vec<_> =
            invariants.iter().map(|(name, held)| format!("{name} {}", if *held { "held" } else { "BROKEN" })).collect();
        stage.say(&format!("invariants: {}", held.join(", ")));
        stage.say(&format!("timings: {}", parts.join(", ")));
        stage.say(if ok { "everything asserted held" } else { "NOT everything asserted held" });
    }
    Ok(ok)
}

/// `clusterReadyMs` → `cluster ready`.
fn words(name: &str) -> String {
    let mut words = String::new();
    for letter in name.strip_suffix("Ms").unwrap_or(name).chars() {
        if letter.is_ascii_uppercase() {
            words.push(' ');
        }
        words.push(letter.to_ascii_lowercase());
    }
    words
}
