use super::Line;
use crate::condition::enumerate;
use crate::names;

/// Other drivers of our name on the node.
#[derive(Clone, Debug, Default)]
pub struct RivalFacts {
    /// Registration sockets of our name on which somebody listens, but for those of the agent that asks.
    pub sockets: Vec<String>,
    /// Whether an agent of ours acts for the node, whose socket may be among them.
    pub agent_runs: bool,
    /// Devices of our name on this node that are not of our making; none if the API was not asked.
    pub devices: Vec<String>,
}

pub(super) fn check(facts: &RivalFacts) -> Line {
    let check = "rival-driver";
    let advice = "switch off computeDomains in NVIDIA's DRA driver, or the GPU Operator's GPUCluster, on this node";
    if !facts.devices.is_empty() {
        let devices = enumerate(facts.devices.iter().cloned());
        let found = format!("another driver named {} publishes devices of this node: {devices}", names::DRIVER);
        return Line::fail(check, found, advice);
    }
    let sockets = enumerate(facts.sockets.iter().cloned());
    match (facts.sockets.len(), facts.agent_runs) {
        (0, _) => Line::ok(check, format!("no other driver is named {}", names::DRIVER)),
        (1, true) => Line::ok(check, format!("{sockets} is the agent's")),
        (_, true) => Line::warn(
            check,
            format!("more than one driver named {} listens: {sockets}", names::DRIVER),
            format!("in a rolling update it passes; else {advice}"),
        ),
        (_, false) => Line::fail(check, format!("another driver named {} listens: {sockets}", names::DRIVER), advice),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::graded;
    use super::*;

    #[test]
    fn each_outcome() {
        let named = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        for (sockets, agent_runs, devices, grade) in [
            (&[][..], false, &[][..], "Ok"),
            (&["a"], true, &[], "Ok"),
            (&["a", "b"], true, &[], "Warn"),
            (&["a"], false, &[], "Fail"),
            (&[], false, &["channel-0"], "Fail"),
            (&["a"], true, &["channel-0"], "Fail"),
        ] {
            let facts = RivalFacts { sockets: named(sockets), agent_runs, devices: named(devices) };
            assert_eq!(graded(&[check(&facts)]), [format!("{grade} rival-driver")], "{facts:?}");
        }
    }
}
