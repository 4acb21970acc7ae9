//! Mailboxes are bounded, and each message says what happens at the bound.

use heddle_actors::runtime::{Overflow, SendError, Spec};

use crate::probe::{Log, act, alone, note, paused, series, start};

const KEEP: Overflow = Overflow::Reject;

#[test]
fn a_flood_is_refused_and_counted() {
    paused(async {
        let (runtime, _, log) = alone();
        let probe = start(&runtime.root(), "small", &log, Spec { mailbox: 3, ..Spec::default() });
        let refused = (0..1000).filter(|_| matches!(probe.send(act(|_, _| ())), Err(SendError::Full(_)))).count();
        assert_eq!(refused, 997);
        let name = "heddle_actor_mailbox_refused_total{actor=\"Probe\",message=\"Do\",cause=\"full\"}";
        assert_eq!(series(&runtime, name), Some(997.0));
        assert_eq!(series(&runtime, "heddle_actor_mailbox_depth{actor=\"Probe\"}"), Some(3.0), "summed by kind");
        while series(&runtime, "heddle_actor_mailbox_depth{actor=\"Probe\"}") != Some(0.0) {
            tokio::task::yield_now().await;
        }
        assert!(probe.send(act(|_, _| ())).is_ok());
    });
}

/// What a mailbox of `bound` keeps of these, in the order in which it hands it on.
fn kept(bound: usize, messages: &[(&'static str, Overflow, &'static str)]) -> (Vec<String>, Vec<&'static str>) {
    paused(async {
        let (runtime, _, _) = alone();
        let log = Log::default();
        let probe = start(&runtime.root(), "small", &log, Spec { mailbox: bound, ..Spec::default() });
        let mut refused = Vec::new();
        for (kind, overflow, line) in messages {
            if probe.send(note(kind, *overflow, line)).is_err() {
                refused.push(*line);
            }
        }
        while series(&runtime, "heddle_actor_mailbox_depth{actor=\"Probe\"}") != Some(0.0) {
            tokio::task::yield_now().await;
        }
        (log.lines().into_iter().filter(|line| !line.ends_with("started")).collect(), refused)
    })
}

#[test]
fn drop_oldest_makes_room_among_its_own() {
    use Overflow::DropOldest;
    let (kept, refused) = kept(
        3,
        &[
            ("Ask", KEEP, "keep"),
            ("Event", DropOldest, "one"),
            ("Event", DropOldest, "two"),
            ("Event", DropOldest, "three"),
            ("Event", DropOldest, "four"),
        ],
    );
    assert_eq!(kept, ["keep", "three", "four"]);
    assert!(refused.is_empty());
}

#[test]
fn drop_oldest_does_not_push_out_what_asked_to_be_kept() {
    let (kept, refused) =
        kept(2, &[("Ask", KEEP, "one"), ("Ask", KEEP, "two"), ("Event", Overflow::DropOldest, "three")]);
    assert_eq!(kept, ["one", "two"]);
    assert_eq!(refused, ["three"]);
}

#[test]
fn a_view_replaces_the_older_one_of_its_kind_where_that_stands() {
    use Overflow::Replace;
    let (kept, refused) = kept(
        4,
        &[
            ("Domain", Replace, "domain 1"),
            ("Ask", KEEP, "ask"),
            ("Inventory", Replace, "inventory 1"),
            ("Domain", Replace, "domain 2"),
            ("Domain", Replace, "domain 3"),
            ("Inventory", Replace, "inventory 2"),
        ],
    );
    assert_eq!(kept, ["domain 3", "ask", "inventory 2"]);
    assert!(refused.is_empty());
}

#[test]
fn a_view_gets_into_a_full_mailbox() {
    let (kept, refused) = kept(
        1,
        &[
            ("Ask", KEEP, "ask"),
            ("Domain", Overflow::Replace, "domain 1"),
            ("Domain", Overflow::Replace, "domain 2"),
            ("Ask", KEEP, "another"),
        ],
    );
    assert_eq!(kept, ["ask", "domain 2"]);
    assert_eq!(refused, ["another"]);
}
