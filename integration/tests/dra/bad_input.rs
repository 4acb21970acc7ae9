//! Claims and calls that nobody honest makes: refused for good, with nothing prepared and nothing left behind.

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::path::PathBuf;

use heddle_core::fault::reason;
use heddle_core::names;
use heddle_integration::api::Verb;
use heddle_proto::dra::v1::dra_plugin_client::DraPluginClient;
use heddle_proto::dra::v1::{Claim, NodePrepareResourcesRequest, NodeUnprepareResourcesRequest};
use prost::Message as _;
use serde_json::{Value, json};

use crate::bed::{Agent, Bed, NODE, dial, run};
use crate::files;

const UNKNOWN: &str = "11111111-2222-4333-8444-555555555555";

/// Everything in the directories of state and CDI.
fn files(bed: &Bed) -> BTreeMap<PathBuf, Vec<u8>> {
    files::below(vec![bed.paths.cdi(), bed.paths.state()])
}

/// The claim is refused for good: an Event says why, which only a permanent fault has. Nothing was entered, written or
/// left, and an Unprepare, which the kubelet sends all the same, is a success.
async fn refused(bed: &Bed, agent: &Agent, claim: &Claim, reason: &str) {
    let (before, held, enters) = (files(bed), bed.stub.borrow().held.clone(), bed.stub.borrow().enters);
    bed.requests();
    let error = agent.prepare_one(claim).await.unwrap_err();
    assert!(!error.is_empty() && error.len() < 1500 && !error.contains('\n'), "{error}");
    let of_claim = |event: &Value| {
        [&event["regarding"], &event["involvedObject"]].iter().any(|about| about["uid"] == claim.uid.as_str())
            && event["reason"] == reason
    };
    agent.until(|| bed.server.objects("", "events").iter().any(of_claim)).await;
    let writes: Vec<_> = bed
        .requests()
        .into_iter()
        .filter(|(verb, what)| !matches!(verb, Verb::Get | Verb::List | Verb::Watch) && what != "events")
        .collect();
    assert_eq!(writes, [], "{error}");
    agent.unprepare(claim).await.unwrap();
    assert_eq!((files(bed), &bed.stub.borrow().held, bed.stub.borrow().enters), (before, &held, enters), "{error}");
}

fn config(domain: &str) -> Value {
    json!({"apiVersion": names::COMPUTE_DOMAIN_API_VERSION, "kind": names::CHANNEL_CONFIG_KIND, "domainID": domain})
}

fn with(domain: &str, field: &str, value: Value) -> Value {
    let mut config = config(domain);
    config[field] = value;
    config
}

/// A node with a claim in use, which must not feel anything of the others.
async fn node() -> (Bed, Agent, String, Claim) {
    let bed = Bed::new().await;
    let (agent, domain, claim) = bed.start_with_claim().await;
    agent.prepare_one(&claim).await.unwrap();
    (bed, agent, domain, claim)
}

#[test]
fn issue_1368_a_config_that_is_not_exactly_ours_is_refused() {
    run(|| async {
        let (bed, agent, green, _) = node().await;
        let configs = [
            config("../../../etc/passwd"),
            config("../x"),
            config(""),
            config("not-a-uuid"),
            config(&green.to_uppercase()),
            config(&format!("{{{green}}}")),
            config(&green.replace('-', "")),
            config(&format!("{green}/../x")),
            config(&format!("{green}\n")),
            with(&green, "domainID", json!(7)),
            with(&green, "domainID", json!(null)),
            with(&green, "channel", json!(7)),
            with(&green, "Kind", json!("x")),
            with(&green, "apiVersion", json!("resource.nvidia.com/v1")),
            with(&green, "allocationMode", json!("Some")),
            with(&green, "kind", json!("ComputeDomainDaemonConfig")),
            with(&green, "kind", json!(["ComputeDomainChannelConfig"])),
            json!({}),
            json!({"a": [[[[[[[[]]]]]]]]}),
        ];
        for (number, config) in configs.into_iter().enumerate() {
            let claim = bed.claim_with(&format!("bad-{number}"), names::DRIVER, &["slot-4"], config).await;
            refused(&bed, &agent, &claim, reason::INVALID_CONFIG).await;
        }
    });
}

#[test]
fn a_compute_domain_that_is_not_the_claim_s_own_is_refused() {
    run(|| async {
        let (bed, agent, ..) = node().await;
        let foreign = bed.compute_domain("other", "green", json!({})).await;
        let configs = [
            // Of another namespace, of the same name as one here, and by its name too.
            config(&foreign),
            with(&foreign, "computeDomain", json!("green")),
            // Forged.
            config(UNKNOWN),
            with(UNKNOWN, "computeDomain", json!("green")),
        ];
        for (number, config) in configs.into_iter().enumerate() {
            let claim = bed.claim_with(&format!("bad-{number}"), names::DRIVER, &["slot-4"], config).await;
            refused(&bed, &agent, &claim, reason::COMPUTE_DOMAIN_GONE).await;
        }
    });
}

/// Of a ComputeDomain in use the agent knows all that counts, by UID and namespace, and does not look at a name.
#[test]
fn a_name_that_is_not_the_compute_domain_s_is_refused_where_none_is_known() {
    run(|| async {
        let bed = Bed::new().await;
        let agent = bed.start().await;
        let green = bed.compute_domain("team", "green", json!({})).await;
        bed.compute_domain("team", "azure", json!({})).await;
        for (number, name) in
            ["azure", "../../other/computedomains/green", "green?x=y", "", "GREEN", "green/status"].iter().enumerate()
        {
            let config = with(&green, "computeDomain", json!(name));
            let claim = bed.claim_with(&format!("bad-{number}"), names::DRIVER, &["slot-4"], config).await;
            refused(&bed, &agent, &claim, reason::COMPUTE_DOMAIN_GONE).await;
        }
    });
}

#[test]
fn a_device_that_is_not_ours_is_refused() {
    run(|| async {
        let (bed, agent, green, _) = node().await;
        let result = |driver: &str, pool: &str, device: &str| json!({"request": "channel", "driver": driver, "pool": pool, "device": device});
        let requests = json!([{"name": "channel", "exactly": {"deviceClassName": names::CHANNEL_DEVICE_CLASS}}]);
        let given = json!([{"source": "FromClaim", "opaque": {"driver": names::DRIVER, "parameters": config(&green)}}]);
        let results = [
            vec![result("gpu.example.com", NODE, "slot-3")],
            vec![result(names::GPU_DRIVER, NODE, "gpu-1")],
            vec![result(names::DRIVER, "n2", "slot-3")],
            vec![result(names::DRIVER, NODE, "slot-3"), result(names::DRIVER, "n2", "slot-3")],
            vec![result(names::DRIVER, NODE, "gpu-1")],
            vec![result(names::DRIVER, NODE, "slot-31")],
            vec![result(names::DRIVER, NODE, "slot-03")],
            vec![result(names::DRIVER, NODE, "slot-3"), result(names::DRIVER, NODE, "channel-0")],
        ];
        for (number, results) in results.into_iter().enumerate() {
            let allocation = json!({"results": results, "config": given.clone()});
            let claim = bed.claim_of(&format!("bad-{number}"), requests.clone(), allocation).await;
            refused(&bed, &agent, &claim, reason::CLAIM_MISMATCH).await;
        }
    });
}

#[test]
fn another_claim_than_the_kubelet_names_is_refused() {
    run(|| async {
        let (bed, agent, _, real) = node().await;
        let named = |namespace: &str, name: &str, uid: &str| Claim {
            namespace: namespace.into(),
            name: name.into(),
            uid: uid.into(),
        };
        for bad in [
            named("team", &real.name, UNKNOWN),
            named("other", &real.name, UNKNOWN),
            named("team", "nobody", UNKNOWN),
            named("team", "../../pods/p", UNKNOWN),
            named("../team", &real.name, UNKNOWN),
            named("", "", UNKNOWN),
        ] {
            let before = files(&bed);
            assert!(agent.prepare_one(&bad).await.is_err(), "{bad:?}");
            agent.unprepare(&bad).await.unwrap();
            assert_eq!(files(&bed), before, "{bad:?}");
        }
        for uid in ["", "..", "../x", "a/b", "a\0b", &"a".repeat(300), ".heddle-probe", &format!("{}/", real.uid)] {
            let (bad, before) = (named("team", &real.name, uid), files(&bed));
            assert!(agent.prepare_one(&bad).await.is_err(), "{bad:?}");
            agent.unprepare(&bad).await.unwrap();
            assert_eq!(files(&bed), before, "{bad:?}");
        }
        assert_eq!(bed.stub.borrow().held.len(), 1);
    });
}

/// What a call may say of its claims.
#[derive(Clone, Debug, bolero::TypeGenerator)]
enum Word {
    Real,
    RealBut(u8, char),
    Any(String),
}

impl Word {
    fn of(&self, real: &str) -> String {
        match self {
            Self::Real => real.to_owned(),
            Self::RealBut(at, letter) => {
                let mut letters: Vec<char> = real.chars().collect();
                let at = *at as usize % letters.len();
                letters[at] = *letter;
                letters.into_iter().collect()
            }
            Self::Any(text) => text.clone(),
        }
    }
}

/// Calls of all kinds over the real socket, while a claim is in use: each claim of a call has an answer, only the claim
/// that exists is ever prepared, and no call leaves anything.
#[test]
fn no_call_prepares_what_does_not_exist() {
    let (tell, told) = std::sync::mpsc::channel();
    let (end, ends) = tokio::sync::oneshot::channel::<()>();
    let agent = std::thread::spawn(move || {
        run(|| async {
            let (bed, agent, _, claim) = node().await;
            tell.send((agent.service(names::DRIVER), claim, bed.paths.clone(), files(&bed))).unwrap();
            let _ = ends.await;
            assert_eq!(bed.stub.borrow().held.len(), 1);
            assert_eq!(bed.stub.borrow().enters, 1);
        });
    });
    let (socket, real, paths, kept) = told.recv().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let plugin = runtime.block_on(async { DraPluginClient::new(dial(socket).await) });
    let node = AssertUnwindSafe((runtime, plugin));
    bolero::check!().with_type::<(Vec<(Word, Word, Word)>, bool)>().with_iterations(500).for_each(|(words, undo)| {
        let claims: Vec<Claim> = words
            .iter()
            .take(8)
            .map(|(namespace, name, uid)| Claim {
                namespace: namespace.of(&real.namespace),
                name: name.of(&real.name),
                uid: uid.of(&real.uid),
            })
            .collect();
        let bytes = NodePrepareResourcesRequest { claims: claims.clone() }.encode_to_vec();
        let claims = NodePrepareResourcesRequest::decode(&bytes[..]).unwrap().claims;
        let (runtime, plugin) = &*node;
        let mut plugin = plugin.clone();
        let uids: std::collections::BTreeSet<_> = claims.iter().map(|claim| claim.uid.clone()).collect();
        if *undo {
            // But for the claim in use, whose Unprepare would be right.
            let claims: Vec<_> = claims.into_iter().filter(|claim| claim.uid != real.uid).collect();
            let answer = runtime.block_on(plugin.node_unprepare_resources(NodeUnprepareResourcesRequest { claims }));
            assert!(answer.unwrap().into_inner().claims.values().all(|answer| answer.error.is_empty()));
        } else {
            let request = NodePrepareResourcesRequest { claims: claims.clone() };
            let answers = runtime.block_on(plugin.node_prepare_resources(request)).unwrap().into_inner().claims;
            assert_eq!(answers.keys().cloned().collect::<std::collections::BTreeSet<_>>(), uids);
            for (uid, answer) in answers {
                assert_eq!(uid == real.uid && answer.error.is_empty(), !answer.devices.is_empty(), "{uid}: {answer:?}");
            }
        }
        for (path, bytes) in &kept {
            assert_eq!(&std::fs::read(path).unwrap(), bytes, "the claim in use has lost something");
        }
        let claims = paths.state().join("claims").join(names::DRIVER);
        for folder in [paths.cdi(), claims, paths.state().join("quarantine")] {
            let found = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
            assert_eq!(found.filter(|path| !kept.contains_key(path)).collect::<Vec<_>>(), Vec::<PathBuf>::new());
        }
    });
    end.send(()).unwrap();
    agent.join().unwrap();
}
