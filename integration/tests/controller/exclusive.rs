use heddle_core::api::IsolationMode::{Channel, Domain};
use heddle_core::controller::{ISOLATED, READY};
use heddle_core::imex::{exclusive_domain_name, shared_domain_name};
use kube::api::DeleteParams;

use crate::cluster::{Cluster, exclusive, home, test};

#[test]
fn a_node_moves_in_and_back_and_the_others_are_not_disturbed() {
    test(3, async |cluster: &mut Cluster| {
        let green = cluster.create("green", Channel).await;
        let red = cluster.create("red", Domain).await;
        cluster.place(&green, Channel, "n0").await;
        let held = cluster.prepared(&green, "n0").await;
        cluster.place(&red, Domain, "n1").await;
        cluster.place(&red, Domain, "n2").await;
        let own = exclusive(&red.uid);
        let (domain, number) = cluster.prepared(&red, "n1").await;
        assert_eq!(domain, own);
        assert_eq!(cluster.prepared(&red, "n2").await, (own.clone(), number));
        cluster.condition("red", READY, "True", "NodesReady").await;
        cluster.condition("red", ISOLATED, "True", "ByDomain").await;
        let shared = cluster.domains().get(&home()).await.unwrap();
        let away: Vec<_> = shared.spec.members.values().map(|member| (member.index, member.away)).collect();
        assert_eq!(away, [(0, false), (1, true), (2, true)]);
        assert_eq!(cluster.prepared(&green, "n0").await, held);

        cluster.end(&red, "n1").await;
        cluster.served("n1", &home()).await;
        assert_eq!(cluster.prepared(&red, "n2").await.0, own, "the other node stays");
        cluster.end(&red, "n2").await;
        cluster.delete("red").await;
        cluster.gone("red").await;
        cluster.served("n2", &home()).await;
        let gone = || async { cluster.domains().get_opt(&own).await.unwrap().is_none().then_some(()) };
        cluster.until("the exclusive IMEXDomain goes", gone).await;
        let shared = cluster.domains().get(&home()).await.unwrap();
        assert!(shared.spec.members.values().all(|member| !member.away));
        assert_eq!(shared.spec.members["n1"].index, 1, "the index was kept");
        assert_eq!(cluster.prepared(&green, "n0").await, held);
    });
}

#[test]
fn a_node_whose_containers_run_on_does_not_move() {
    test(1, async |cluster: &mut Cluster| {
        let green = cluster.create("green", Channel).await;
        let red = cluster.create("red", Domain).await;
        cluster.place(&green, Channel, "n0").await;
        cluster.prepared(&green, "n0").await;
        // A pod deleted by force: its claim is gone, the node still has it prepared.
        cluster.claims().delete("green-n0", &DeleteParams::default()).await.unwrap();
        cluster.place(&red, Domain, "n0").await;
        let text = cluster.condition("red", ISOLATED, "False", "DomainPending").await;
        assert!(text.contains("n0 still serves IMEX domain"), "{text}");
        assert!(text.contains("where it still uses channels"), "{text}");
        assert_eq!(cluster.nodes().get("n0").await.unwrap().spec.domain, Some(home()));
        cluster.agent("n0").unwant(&green.uid);
        assert_eq!(cluster.prepared(&red, "n0").await.0, exclusive(&red.uid));
        cluster.condition("red", ISOLATED, "True", "ByDomain").await;
    });
}

#[test]
fn two_exclusive_compute_domains_in_one_clique() {
    test(2, async |cluster: &mut Cluster| {
        let red = cluster.create("red", Domain).await;
        let pink = cluster.create("pink", Domain).await;
        cluster.place(&red, Domain, "n0").await;
        cluster.place(&pink, Domain, "n1").await;
        assert_eq!(cluster.prepared(&red, "n0").await.0, exclusive(&red.uid));
        assert_eq!(cluster.prepared(&pink, "n1").await.0, exclusive(&pink.uid));
        // They change places, by way of home.
        cluster.end(&red, "n0").await;
        cluster.end(&pink, "n1").await;
        cluster.place(&red, Domain, "n1").await;
        cluster.place(&pink, Domain, "n0").await;
        assert_eq!(cluster.prepared(&red, "n1").await.0, exclusive(&red.uid));
        assert_eq!(cluster.prepared(&pink, "n0").await.0, exclusive(&pink.uid));
    });
}

#[test]
fn one_over_several_cliques_has_a_domain_in_each() {
    test(4, async |cluster: &mut Cluster| {
        let cliques: [heddle_core::clique::CliqueId; 2] =
            ["7", "8"].map(|n| format!("0b6fbb2e-7b1a-4a5c-9a53-6f3f5dfb2a11.{n}").parse().unwrap());
        for (n, node) in ["n0", "n1", "n2", "n3"].into_iter().enumerate() {
            cluster.agent(node).set_clique(cliques[n % 2]);
        }
        let red = cluster.create("red", Domain).await;
        let green = cluster.create("green", Channel).await;
        cluster.place(&green, Channel, "n3").await;
        for node in ["n0", "n1", "n2"] {
            cluster.place(&red, Domain, node).await;
        }
        let own = cliques.map(|clique| exclusive_domain_name(&clique, &red.uid));
        assert_ne!(own[0], own[1]);
        for (node, domain) in [("n0", &own[0]), ("n1", &own[1]), ("n2", &own[0])] {
            assert_eq!(cluster.prepared(&red, node).await.0, *domain);
        }
        cluster.condition("red", ISOLATED, "True", "ByDomain").await;
        assert_eq!(cluster.prepared(&green, "n3").await.0, shared_domain_name(&cliques[1]), "beside it");

        cluster.delete("red").await;
        for node in ["n0", "n1", "n2"] {
            cluster.end(&red, node).await;
        }
        cluster.gone("red").await;
        for (n, node) in ["n0", "n1", "n2"].into_iter().enumerate() {
            cluster.served(node, &shared_domain_name(&cliques[n % 2])).await;
        }
        let left = || async { (cluster.server.objects("imex.heddle.dev", "imexdomains").len() == 2).then_some(()) };
        cluster.until("only the shared domains are left", left).await;
    });
}

#[test]
fn one_deleted_half_way_through_a_move_leaves_nothing() {
    test(1, async |cluster: &mut Cluster| {
        let red = cluster.create("red", Domain).await;
        cluster.served("n0", &home()).await;
        cluster.place(&red, Domain, "n0").await;
        cluster.delete("red").await;
        cluster.end(&red, "n0").await;
        cluster.gone("red").await;
        let seen = || async {
            let domains = cluster.server.objects("imex.heddle.dev", "imexdomains").len();
            let node = cluster.nodes().get("n0").await.unwrap();
            (domains == 1 && node.spec.domain == Some(home())).then_some(())
        };
        cluster.until("only home is left", seen).await;
        cluster.served("n0", &home()).await;
    });
}
