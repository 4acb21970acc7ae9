//! The scenes of `heddle bench` with few nodes: that they come to their end, and counts. Never how long anything took.

use std::process::Command;

use serde_json::Value;

/// The figures of a scene.
struct Figures(Vec<Value>);

impl Figures {
    fn of(arguments: &[&str]) -> Self {
        let bench = Command::new(env!("CARGO_BIN_EXE_heddle"))
            .args(["bench", "--json"])
            .args(arguments)
            .env_remove("KUBECONFIG")
            .output()
            .unwrap();
        assert!(bench.status.success(), "{}", String::from_utf8_lossy(&bench.stderr));
        Self(serde_json::from_slice(&bench.stdout).unwrap())
    }

    /// The value of a line in a part of which the heading contains `section`.
    fn value(&self, section: &str, what: &str) -> f64 {
        let found = self
            .0
            .iter()
            .find(|figure| figure["section"].as_str().unwrap_or_default().contains(section) && figure["what"] == what);
        found.unwrap_or_else(|| panic!("{section}: {what} is not among {:#?}", self.0))["value"].as_f64().unwrap()
    }
}

#[test]
fn three_nodes_boot_with_few_writes() {
    let figures = Figures::of(&["boot", "--nodes", "3", "--idle-seconds", "0"]);
    // However far apart they come: for each that it has a place, is missed, is READY and is connected. Together they cost less. Not a
    // write for each pair, nor for each word of a daemon that starts.
    assert!(figures.value("writes until", "IMEXDomain") <= 12.0);
    // Whatever the size of the clique is: 732, 822, 1107.
    assert!(figures.value("writes until", "IMEXNode, the most of one node") <= 12.0);
    // Each of the two others tells once that it is connected with it.
    assert!(figures.value("one node joins", "writes of the others' IMEXNodes") <= 2.0);
    // It has a place, it is missed, it is READY, all are connected.
    assert!(figures.value("one node joins", "IMEXDomain writes") <= 4.0);
}

#[test]
fn a_node_moves_in_and_back_beside_one_that_stays() {
    let figures = Figures::of(&["exclusive", "--nodes", "2", "--moving", "1"]);
    assert_eq!(figures.value("others", "daemons that were restarted"), 0.0);
    // Announced, certified, assigned, daemon switched, entered.
    assert!(figures.value("move in", "IMEXNode writes for each node that moves") <= 12.0);
    assert!(figures.value("move back", "IMEXNode writes for each node that moves") <= 10.0);
}

#[test]
fn what_a_compute_domain_costs_the_controller_is_the_same_in_a_larger_cluster() {
    let size = |nodes, cliques, cds| [["--nodes", nodes], ["--cliques", cliques], ["--cds", cds]].concat();
    let churn = ["--churn-seconds", "2", "--churn-rate", "4", "--reboots", "10", "--before", "20"];
    let figures = Figures::of(&[&["scale"], &size("60", "4", "6")[..], &churn].concat());
    for (part, clique) in [("20 nodes", 10.0), ("60 nodes", 15.0)] {
        assert_eq!(figures.value(part, "cold start: controller's writes"), 0.0);
        assert_eq!(figures.value(part, "rest: writes in 10 s"), 0.0);
        // Each of its two nodes enters and leaves, and every member of the clique notes the drain once; or of two cliques, where
        // it has a channel in each.
        let channels = figures.value(part, "churn: writes of IMEXDomains by agents for each");
        let notes = figures.value(part, "churn: writes of IMEXNodes by agents for each and node");
        assert!(notes <= channels * clique / 2.0 + 2.1, "{notes} in {part}, {channels} channels each");
        // Now and then two that write the same object meet.
        assert!(figures.value(part, "churn: writes of agents that were refused, for each") <= 0.5);
        // Finalizer, template and status of it, and their end; drain, free, Events. No fence: all are there to note it.
        assert!(figures.value(part, "churn: controller's writes for each") <= 16.0);
    }
}
