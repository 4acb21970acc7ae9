//! Registration: how the kubelet finds and dials plugins, and what it does when they go.

use std::time::Duration;

use heddle_integration::kubelet::Limits;
use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{UnixListener, UnixStream},
};

use crate::{
    plugin::{Plugin, Script},
    world::{NODE, World},
};

#[tokio::test]
async fn the_dial_carries_the_percent_encoded_path_as_authority() {
    let world = World::new();
    std::fs::create_dir_all(world.paths.registry()).unwrap();
    let socket = world.paths.registry().join("raw-reg.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let (mut stream, _) = listener.accept().await.unwrap();
    let mut preface = [0; 24];
    stream.read_exact(&mut preface).await.unwrap();
    assert_eq!(&preface, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
    stream.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0]).await.unwrap();
    let block = loop {
        let (kind, payload) = frame(&mut stream).await;
        if kind == 1 {
            break payload;
        }
    };
    let fields = loona_hpack::Decoder::new().decode(&block).unwrap();
    let field = |name: &[u8]| {
        let value = fields.iter().find(|(n, _)| n == name).map(|(_, value)| value.clone());
        String::from_utf8(value.unwrap()).unwrap()
    };
    assert_eq!(field(b":path"), "/pluginregistration.Registration/GetInfo");
    assert_eq!(field(b":authority"), socket.to_str().unwrap().replace('/', "%2F"));
    assert_eq!(field(b"te"), "trailers");
}

async fn frame(stream: &mut UnixStream) -> (u8, Vec<u8>) {
    let mut head = [0; 9];
    stream.read_exact(&mut head).await.unwrap();
    let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
    stream.read_exact(&mut payload).await.unwrap();
    (head[3], payload)
}

#[tokio::test]
async fn a_plugin_that_answers_late_is_registered_without_help() {
    let limits = Limits { get_info: Duration::from_millis(50), ..Limits::brisk() };
    let world = World::with(limits);
    let plugin = Plugin::with(&world.paths, "a", Script { deaf: 2, ..Script::default() });
    plugin.double.until(|script| script.notices.len() == 1).await;
    assert_eq!(plugin.double.get(|script| script.notices.clone()), [(true, String::new())]);
    assert!(world.kubelet.counts().get_info_calls >= 3);
}

#[tokio::test]
async fn a_plugin_of_another_kind_or_without_a_common_version_is_told_so() {
    let world = World::new();
    let odd = Plugin::with(&world.paths, "odd", Script { kind: "CSIPlugin".into(), ..Script::default() });
    odd.double.until(|script| !script.notices.is_empty()).await;
    let (registered, text) = odd.double.get(|script| script.notices[0].clone());
    assert!(!registered && text.contains("no handler registered for plugin type: CSIPlugin"), "{text}");
    let old = Plugin::with(&world.paths, "old", Script { services: vec!["v1alpha4.Node".into()], ..Script::default() });
    old.double.until(|script| !script.notices.is_empty()).await;
    let (registered, text) = old.double.get(|script| script.notices[0].clone());
    assert!(!registered && text.contains("none of services supported by the plugin"), "{text}");
}

#[tokio::test]
async fn a_hidden_file_or_one_that_is_no_socket_is_ignored() {
    let world = World::new();
    std::fs::create_dir_all(world.paths.registry()).unwrap();
    std::fs::write(world.paths.registry().join("file"), "").unwrap();
    let hidden = Plugin::start(&world.paths, ".hidden");
    let plugin = Plugin::start(&world.paths, "a");
    plugin.double.until(|script| script.notices.len() == 1).await;
    assert_eq!(hidden.double.get(|script| script.notices.len()), 0);
    assert_eq!(world.kubelet.counts().get_info_calls, 1);
}

#[tokio::test]
async fn a_restarted_plugin_registers_again_and_its_claims_stay_prepared() {
    let world = World::new();
    let plugin = Plugin::start(&world.paths, "a");
    world.claim("c1").await;
    world.pod("p1", &["c1"], json!({})).await;
    world.running("p1").await;
    plugin.stop(false);
    let plugin = Plugin::start(&world.paths, "a");
    plugin.double.until(|script| script.notices.len() == 1).await;
    world.pod("p2", &["c1"], json!({})).await;
    world.running("p2").await;
    assert_eq!(plugin.double.get(|script| script.prepares.len()), 0);
    world.delete("p1").await;
    world.delete("p2").await;
    plugin.double.until(|script| script.unprepares.len() == 1).await;
}

#[tokio::test]
async fn the_newest_connected_instance_is_called() {
    let world = World::new();
    let old = Plugin::start(&world.paths, "old");
    old.double.until(|script| script.notices.len() == 1).await;
    let new = Plugin::start(&world.paths, "new");
    new.double.until(|script| script.notices.len() == 1).await;
    world.claim("c1").await;
    world.pod("p1", &["c1"], json!({})).await;
    world.running("p1").await;
    assert_eq!(new.double.get(|script| script.prepares.len()), 1);
    // The new one dies with its sockets left behind: the old one serves on.
    new.stop(false);
    world.claim("c2").await;
    world.pod("p2", &["c2"], json!({})).await;
    world.running("p2").await;
    assert_eq!(old.double.get(|script| script.prepares.len()), 1);
}

#[tokio::test]
async fn slices_of_the_node_are_wiped_at_start_and_after_the_plugin_is_gone() {
    let world = World::with(Limits { wipe_delay: Duration::from_millis(100), ..Limits::brisk() });
    world.kubelet.stop().await;
    world.slice("here", Some(NODE)).await;
    world.slice("elsewhere", Some("n2")).await;
    world.slice("everywhere", None).await;
    world.kubelet.restart().await;
    world.slice_gone("here").await;
    let plugin = Plugin::start(&world.paths, "a");
    plugin.double.until(|script| script.notices.len() == 1).await;
    world.slice("here", Some(NODE)).await;
    plugin.stop(true);
    world.slice_gone("here").await;
    assert_eq!(world.slices().await, ["elsewhere", "everywhere"]);
}

#[tokio::test]
async fn slices_stay_when_the_plugin_is_back_in_time() {
    let world = World::with(Limits { wipe_delay: Duration::from_secs(3600), ..Limits::brisk() });
    world.wiped().await;
    let plugin = Plugin::start(&world.paths, "a");
    plugin.double.until(|script| script.notices.len() == 1).await;
    world.slice("here", Some(NODE)).await;
    plugin.stop(true);
    let plugin = Plugin::start(&world.paths, "a");
    plugin.double.until(|script| script.notices.len() == 1).await;
    assert_eq!(world.slices().await, ["here"]);
}

#[tokio::test]
async fn a_plugin_that_speaks_only_the_older_version_is_called_by_it() {
    let world = World::new();
    let services = vec!["v1beta1.DRAPlugin".to_owned()];
    let plugin = Plugin::with(&world.paths, "a", Script { services, ..Script::default() });
    world.claim("c1").await;
    world.pod("p1", &["c1"], json!({})).await;
    // The double serves v1 only, which shows that the older one was called.
    let text = world.event("p1", "FailedPrepareDynamicResources", "rpc error").await;
    assert!(text.contains("code = Unimplemented"), "{text}");
    assert_eq!(plugin.double.get(|script| script.prepares.len()), 0);
}

#[tokio::test]
async fn one_instance_cannot_take_over_anothers_endpoint() {
    let world = World::new();
    let first = Plugin::start(&world.paths, "a");
    first.double.until(|script| script.notices.len() == 1).await;
    let script = Script { endpoint: Some(first.socket.clone()), ..Script::default() };
    let second = Plugin::with(&world.paths, "b", script);
    second.double.until(|script| !script.notices.is_empty()).await;
    let (registered, text) = second.double.get(|script| script.notices[0].clone());
    assert!(!registered && text.contains("already registered for DRA driver plugin"), "{text}");
}

#[tokio::test]
async fn a_plugin_that_does_not_take_the_good_news_is_not_registered_until_it_does() {
    let world = World::new();
    let plugin = Plugin::with(&world.paths, "a", Script { rude: 1, ..Script::default() });
    plugin.double.until(|script| !script.notices.is_empty()).await;
    // Had the first registration stood, the second would have been refused.
    assert_eq!(plugin.double.get(|script| script.notices[0].clone()), (true, String::new()));
    assert_eq!(plugin.double.get(|script| script.rude), 0);
}

#[tokio::test]
async fn a_service_socket_that_listens_late_is_found() {
    let world = World::new();
    let late = Plugin::start(&world.paths, "late");
    late.double.until(|script| script.notices.len() == 1).await;
    let (socket, aside) = (late.socket.clone(), late.socket.with_extension("aside"));
    std::fs::rename(&socket, &aside).unwrap();
    world.kubelet.restart().await;
    late.double.until(|script| script.notices.len() == 2).await;
    world.claim("c1").await;
    world.pod("p1", &["c1"], json!({})).await;
    let text = world.event("p1", "FailedPrepareDynamicResources", "rpc error").await;
    assert!(text.contains("code = Unavailable desc = connection error"), "{text}");
    std::fs::rename(&aside, &socket).unwrap();
    world.running("p1").await;
    assert_eq!(late.double.get(|script| script.prepares.len()), 1);
}
