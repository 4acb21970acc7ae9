//! What was measured, beside its budget.

use std::time::Duration;

use serde::Serialize;

/// Durations of one thing done many times.
#[derive(Clone, Debug, Default)]
pub struct Distribution {
    sorted: Vec<Duration>,
}

impl Distribution {
    /// Of these durations, in any order.
    pub fn new(mut durations: Vec<Duration>) -> Self {
        durations.sort();
        Self { sorted: durations }
    }

    /// The duration that this share of all (0 to 1) does not exceed: the nearest rank, no interpolation. Zero of none.
    pub fn quantile(&self, share: f64) -> Duration {
        let rank = (share * self.sorted.len() as f64).ceil() as usize;
        self.sorted.get(rank.saturating_sub(1)).copied().unwrap_or_default()
    }
}

/// One line of the table.
#[derive(Clone, Debug, Serialize)]
pub struct Figure {
    /// The part of the measurement that it belongs to.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub section: String,
    /// What was measured.
    pub what: String,
    /// The value.
    pub value: f64,
    /// Its unit.
    pub unit: &'static str,
    /// What design §10 allows, in its words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub budget: Option<String>,
    /// Whether it is within its budget.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub within: Option<bool>,
}

/// All lines.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    section: String,
    lines: Vec<Figure>,
}

impl Figures {
    /// What comes now belongs to this part.
    pub fn section(&mut self, name: impl Into<String>) {
        self.section = name.into();
    }

    fn add(&mut self, what: String, value: f64, unit: &'static str, budget: Option<(String, bool)>) {
        let (budget, within) = budget.unzip();
        self.lines.push(Figure { section: self.section.clone(), what, value, unit, budget, within });
    }

    /// A value without budget.
    pub fn plain(&mut self, what: impl Into<String>, value: f64, unit: &'static str) {
        self.add(what.into(), value, unit, None);
    }

    /// A value that must not be above `limit`.
    pub fn at_most(&mut self, what: impl Into<String>, value: f64, unit: &'static str, limit: f64) {
        self.add(what.into(), value, unit, Some((format!("≤ {} {unit}", shown(limit)), value <= limit)));
    }

    /// A value that must not be below `limit`.
    pub fn at_least(&mut self, what: impl Into<String>, value: f64, unit: &'static str, limit: f64) {
        self.add(what.into(), value, unit, Some((format!("≥ {} {unit}", shown(limit)), value >= limit)));
    }

    /// p50, p90 and p99 in milliseconds, each with its limit if it has one.
    pub fn distribution(&mut self, what: &str, measured: &Distribution, limits: [Option<f64>; 3]) {
        for ((share, name), limit) in [(0.5, "p50"), (0.9, "p90"), (0.99, "p99")].into_iter().zip(limits) {
            let (what, value) = (format!("{what}, {name}"), millis(measured.quantile(share)));
            match limit {
                Some(limit) => self.at_most(what, value, "ms", limit),
                None => self.plain(what, value, "ms"),
            }
        }
    }

    /// The median and the longest, in milliseconds: all that few durations say.
    pub fn spread(&mut self, what: &str, measured: &Distribution) {
        for (share, name) in [(0.5, "p50"), (1.0, "longest")] {
            self.plain(format!("{what}, {name}"), millis(measured.quantile(share)), "ms");
        }
    }

    /// The lines.
    pub fn lines(&self) -> &[Figure] {
        &self.lines
    }

    /// The lines as a table for people.
    pub fn table(&self) -> String {
        let width = self.lines.iter().map(|figure| figure.what.chars().count()).max().unwrap_or_default();
        let (mut table, mut section) = (String::new(), "");
        for figure in &self.lines {
            if figure.section != section {
                section = &figure.section;
                table.push_str(&format!("{}{section}\n", if table.is_empty() { "" } else { "\n" }));
            }
            let value = format!("{} {}", shown(figure.value), figure.unit);
            let what = format!("{:width$}", figure.what);
            let verdict = match (&figure.budget, figure.within) {
                (Some(budget), Some(true)) => format!("budget {}", budget.trim_end()),
                (Some(budget), _) => format!("budget {}  OVER", budget.trim_end()),
                (None, _) => String::new(),
            };
            table.push_str(format!("  {what}  {value:>14}  {verdict}").trim_end());
            table.push('\n');
        }
        table
    }
}

/// Milliseconds of a duration.
pub fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}

/// Three digits that count are enough to compare with a budget.
fn shown(value: f64) -> String {
    match value.abs() {
        whole if whole >= 100.0 || value.fract() == 0.0 => format!("{value:.0}"),
        tens if tens >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_is_one_of_the_values() {
        let values = Distribution::new((1..=100).rev().map(Duration::from_millis).collect());
        for (share, expected) in [(0.0, 1), (0.5, 50), (0.9, 90), (0.99, 99), (1.0, 100)] {
            assert_eq!(values.quantile(share), Duration::from_millis(expected), "{share}");
        }
        assert_eq!(Distribution::default().quantile(0.5), Duration::ZERO);
        assert_eq!(Distribution::new(vec![Duration::from_secs(1)]).quantile(0.01), Duration::from_secs(1));
    }

    #[test]
    fn parts_have_headings() {
        let mut figures = Figures::default();
        figures.plain("a", 1.0, "");
        figures.section("boot");
        figures.plain("b", 2.0, "");
        figures.plain("c", 3.0, "");
        let table = figures.table();
        assert_eq!(table.lines().filter(|line| *line == "boot").count(), 1, "{table}");
        assert_eq!(figures.lines()[2].section, "boot");
    }

    #[test]
    fn a_budget_is_kept_on_its_edge_and_broken_beyond() {
        let mut figures = Figures::default();
        figures.at_most("a", 5.0, "ms", 5.0);
        figures.at_most("b", 5.01, "ms", 5.0);
        figures.at_least("c", 499.0, "/s", 500.0);
        let within: Vec<_> = figures.lines().iter().map(|figure| figure.within).collect();
        assert_eq!(within, [Some(true), Some(false), Some(false)]);
        let table = figures.table();
        assert_eq!(table.lines().filter(|line| line.ends_with("OVER")).count(), 2, "{table}");
        assert!(table.contains("budget ≥ 500 /s"), "{table}");
    }
}
