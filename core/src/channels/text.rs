use std::fmt::Write;

use super::{Channel, State};
use crate::condition::enumerate;
use crate::fault::plain;

const HEAD: [&str; 6] = ["DOMAIN", "CHANNEL", "STATE", "COMPUTEDOMAIN", "NODES", "WAITS FOR"];

/// A table for people, with a last line that counts.
pub fn text(channels: &[Channel]) -> String {
    if channels.is_empty() {
        return "no channel is in use\n".into();
    }
    let rows: Vec<[String; 6]> = channels.iter().map(row).collect();
    let mut widths = HEAD.map(str::len);
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = String::new();
    for row in std::iter::once(HEAD.map(String::from)).chain(rows) {
        let cells: Vec<_> = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        let _ = writeln!(text, "{}", cells.join("  ").trim_end());
    }
    let of = |state| channels.iter().filter(|channel| channel.state == state).count();
    let _ = write!(text, "{} channels", channels.len());
    for (state, word) in
        [(State::Draining, "draining"), (State::Quarantined, "in quarantine"), (State::Unmapped, "not in the map")]
    {
        if of(state) > 0 {
            let _ = write!(text, ", {} {word}", of(state));
        }
    }
    text.push('\n');
    text
}

fn row(channel: &Channel) -> [String; 6] {
    let who = if channel.compute_domain.is_empty() { &channel.uid } else { &channel.compute_domain };
    let nodes = channel.nodes.iter().map(|node| match node.lost {
        Some(_) => format!("{} (lost)", node.name),
        None => node.name.clone(),
    });
    let cells = [
        channel.domain.clone(),
        channel.channel.to_string(),
        format!("{:?}", channel.state),
        who.clone(),
        enumerate(nodes),
        channel.waits_for.join("; "),
    ];
    cells.map(|cell| if cell.is_empty() { "-".into() } else { plain(&cell).collect() })
}

#[cfg(test)]
mod tests {
    use super::super::User;
    use super::*;

    #[test]
    fn a_table_is_as_wide_as_its_cells_and_ends_with_counts() {
        let mut one = Channel {
            clique: "c".into(),
            domain: "shared-1".into(),
            channel: 7,
            state: State::Active,
            compute_domain: "team/green".into(),
            uid: "u".into(),
            nodes: vec![User { name: "n1".into(), since: String::new(), lost: Some("has no Node any more".into()) }],
            waits_for: vec![],
        };
        let mut two = one.clone();
        (two.state, two.compute_domain) = (State::Quarantined, "evil\u{1b}[2J".into());
        two.waits_for = vec!["x".into()];
        one.nodes.clear();
        let expected = "\
DOMAIN    CHANNEL  STATE        COMPUTEDOMAIN  NODES      WAITS FOR
shared-1  7        Active       team/green     -          -
shared-1  7        Quarantined  evil [2J       n1 (lost)  x
2 channels, 1 in quarantine
";
        assert_eq!(text(&[one, two]), expected);
        assert_eq!(text(&[]), "no channel is in use\n");
    }
}
