//! What Heddle costs, measured on its real processes and printed beside the budgets of the design.
//!
//! Figures depend on the machine; budgets are what the project promises on two cores. Nothing here is a test: it fails
//! when something does not work, never because it is slow.

mod bed;
mod claims;
mod figures;
mod node;
mod process;
mod scrape;

use std::path::PathBuf;

use bed::Bed;
use figures::Figures;
pub use node::Amounts;

/// What is to be measured.
#[derive(Clone, Debug)]
pub struct Options {
    /// The cluster to measure against; an embedded API server if none.
    pub kubeconfig: Option<PathBuf>,
    /// The binary whose agent, runner and controller are measured; this one if none.
    pub binary: Option<PathBuf>,
    /// How much is done.
    pub amounts: Amounts,
    /// One JSON document instead of a table.
    pub json: bool,
}

/// Measures one node and prints the figures.
///
/// # Errors
/// When something that is measured fails, in one sentence.
pub async fn run(options: Options) -> anyhow::Result<()> {
    let mut bed = Bed::start(options.kubeconfig.as_deref(), options.binary.as_deref()).await?;
    let mut figures = Figures::default();
    let measured = node::measure(&mut bed, options.amounts, &mut figures).await;
    bed.stop().await;
    measured?;
    if options.json {
        println!("{}", serde_json::to_string_pretty(figures.lines())?);
    } else {
        let server = options.kubeconfig.map_or("an embedded API server".into(), |path| path.display().to_string());
        println!("One node against {server}:\n\n{}", figures.table());
    }
    Ok(())
}
