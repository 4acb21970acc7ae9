//! What its daemon shows its peers.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use heddle_proto::runner::{Identity, RenewRequest, StopRequest};
use tonic::Code;

use crate::rig::{Rig, apply, apply_as, config, identity, obstruct};
use crate::stand_in::{alive, root};

#[tokio::test]
async fn an_identity_is_shown_and_renewed_without_a_restart() {
    let mut rig = Rig::start(root()).await;
    rig.client.apply(apply_as(config("d", "10.0.0.1"), identity("d", 1), false)).await.unwrap();
    let ready = rig.until_ready().await;
    assert_eq!((ready.identity.as_str(), ready.identity_not_after_unix), ("d.x", 1));
    let run = rig.root.path().join("run");
    let file = fs::read_to_string(run.join("daemon/config.cfg")).unwrap();
    for line in [
        "IMEX_ENABLE_AUTH_ENCRYPTION=1",
        "IMEX_AUTH_ENCRYPTION_MODE=SSL_TLS",
        "IMEX_AUTH_SOURCE=FILE",
        "IMEX_SECURITY_TARGET_OVERRIDE=d.x",
        &format!("IMEX_SERVER_KEY={}", run.join("daemon/identity/tls.key").display()),
        &format!("IMEX_CLIENT_CERT_AUTH={}", run.join("daemon/identity/ca.crt").display()),
    ] {
        assert!(file.lines().any(|l| l == line), "{line} in {file}");
    }
    let mode = |name: &str| fs::metadata(run.join(name)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("daemon/identity/tls.key"), mode("daemon/identity")), (0o600, 0o700));

    // Renewals inside a window are one signal, and the last certificate is what is there at it.
    for serial in 2..6 {
        let renew = RenewRequest { identity: Some(identity("d", serial)) };
        let state = rig.client.renew(renew).await.unwrap().into_inner();
        assert_eq!((state.daemon_pid, state.starts), (ready.daemon_pid, 1));
        assert_eq!(state.identity_not_after_unix, i64::from(serial));
    }
    assert_eq!(fs::read_to_string(run.join("daemon/identity/tls.crt")).unwrap(), "-----BEGIN 5-----\n");
    rig.until_calls("signalled", |calls| calls.contains("usr1")).await;
    let state =
        rig.client.apply(apply_as(config("d", "10.0.0.1"), identity("d", 6), false)).await.unwrap().into_inner();
    assert_eq!(
        (state.daemon_pid, state.identity_not_after_unix),
        (ready.daemon_pid, 6),
        "with the domain it is the same"
    );
    rig.until_calls("signalled again", |calls| calls.matches("usr1").count() >= 2).await;
    assert!(rig.calls().matches("usr1").count() <= 3, "{}", rig.calls());

    for (bad, says) in [
        (RenewRequest::default(), "no identity"),
        (RenewRequest { identity: Some(identity("e", 7)) }, "does not serve"),
        (RenewRequest { identity: Some(Identity { name: "e.x".into(), ..identity("d", 7) }) }, "takes a restart"),
        (RenewRequest { identity: Some(Identity { key_pem: String::new(), ..identity("d", 7) }) }, "no PEM"),
    ] {
        let refused = rig.client.renew(bad).await.unwrap_err();
        assert!(refused.message().contains(says), "{refused}");
    }
    let mixed = apply_as(config("d", "10.0.0.1"), identity("e", 7), true);
    assert_eq!(rig.client.apply(mixed).await.unwrap_err().code(), Code::InvalidArgument);

    // A runner that is started anew shows what was there last.
    let mut rig = Rig::start(rig.end().await).await;
    let again = rig.until_ready().await;
    assert_eq!((again.identity.as_str(), again.identity_not_after_unix), ("d.x", 6));
    rig.client.stop(StopRequest { no_claims_prepared: true }).await.unwrap();
    assert!(!rig.root.path().join("run/daemon/identity").exists(), "nothing is left of a domain that is not served");
    rig.end().await;
}

#[tokio::test]
async fn whether_peers_are_authenticated_changes_by_a_restart_alone() {
    let mut rig = Rig::start(root()).await;
    rig.client.apply(apply_as(config("d", "10.0.0.1"), identity("d", 1), false)).await.unwrap();
    let first = rig.until_ready().await;
    // An agent of before, which knows of no identities, does not take the authentication off a daemon in use.
    let refused = rig.client.apply(apply(config("d", "10.0.0.1"), false)).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(alive(first.daemon_pid));
    let open = rig.client.apply(apply(config("d", "10.0.0.1"), true)).await.unwrap().into_inner();
    assert_eq!((open.starts, open.identity.as_str()), (2, ""));
    assert!(!fs::read_to_string(rig.root.path().join("run/daemon/config.cfg")).unwrap().contains("AUTH_ENCRYPTION"));
    let refused = rig.client.apply(apply_as(config("d", "10.0.0.1"), identity("d", 2), false)).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    rig.end().await;
}

#[tokio::test]
async fn what_kept_a_daemon_from_its_identity_is_waited_out_without_an_agent() {
    let mut rig = Rig::start(root()).await;
    let run = rig.root.path().join("run");
    rig.client.apply(apply_as(config("d", "10.0.0.1"), identity("d", 1), false)).await.unwrap();
    rig.until_ready().await;
    for (domain, stops) in [("e", false), ("f", true)] {
        if stops {
            rig.client.stop(StopRequest { no_claims_prepared: true }).await.unwrap();
        }
        obstruct(&run);
        let given = apply_as(config(domain, "10.0.0.1"), identity(domain, 2), true);
        // Told or not, it is not forgotten.
        let _ = rig.client.apply(given).await;
        let down = rig.until("DOWN", |state| state.domain == domain && state.daemon_state == "DOWN").await;
        assert!(down.message.contains("cannot be written"), "{down:?}");
        fs::remove_file(run.join("daemon")).unwrap();
        rig.until("READY", |state| state.domain == domain && state.daemon_state == "READY").await;
        assert_eq!(fs::read_to_string(run.join("daemon/identity/tls.key")).unwrap(), "-----BEGIN 2-----\n");
    }
    rig.end().await;
}

#[tokio::test]
async fn a_key_that_was_lost_with_the_folder_is_there_again_and_one_that_nobody_knows_is_missed() {
    let mut rig = Rig::start(root()).await;
    rig.client.apply(apply_as(config("d", "10.0.0.1"), identity("d", 1), false)).await.unwrap();
    let ready = rig.until_ready().await;
    assert_ne!(ready.identity_sha256, "");
    let run = rig.root.path().join("run");
    fs::remove_dir_all(&run).unwrap();
    rig.until_calls("signalled", |calls| calls.contains("usr1")).await;
    assert_eq!(fs::read_to_string(run.join("daemon/identity/tls.key")).unwrap(), "-----BEGIN 1-----\n");

    let root = rig.kill().await;
    fs::remove_file(run.join("daemon/identity/tls.key")).unwrap();
    let mut rig = Rig::start(root).await;
    rig.until_ready().await;
    let missed = rig.until("missed", |state| state.identity_sha256.is_empty()).await;
    assert_eq!((missed.daemon_pid, missed.identity.as_str()), (ready.daemon_pid, "d.x"));
    rig.client.renew(RenewRequest { identity: Some(identity("d", 2)) }).await.unwrap();
    assert_eq!(fs::read_to_string(run.join("daemon/identity/tls.key")).unwrap(), "-----BEGIN 2-----\n");
    let signals = rig.calls().matches("usr1").count();
    rig.until_calls("signalled", |calls| calls.matches("usr1").count() > signals).await;
    assert!(alive(ready.daemon_pid));
    rig.end().await;
}
