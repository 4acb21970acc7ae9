use std::io::Write;

use anyhow::Context;
use clap::Args;
use heddle_core::api;

/// Prints what `kubectl apply -f -` takes.
#[derive(Args)]
pub struct Crds {}

impl Crds {
    pub fn run(self) -> anyhow::Result<()> {
        let mut out = std::io::stdout().lock();
        for crd in api::crds() {
            // By way of a JSON value, so that keys come sorted and the output is the same on every machine.
            let value = serde_json::to_value(&crd)?;
            let yaml = serde_saphyr::to_string(&value).context("the CRD could not be written as YAML")?;
            writeln!(out, "---\n{}", yaml.trim_end())?;
        }
        Ok(())
    }
}
