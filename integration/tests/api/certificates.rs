//! CertificateSigningRequests: who has asked is the server's word, and every path changes its own part.

use heddle_integration::api::User;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;

use super::*;

fn asking(name: &str) -> CertificateSigningRequest {
    object(json!({
        "metadata": {"name": name},
        "spec": {
            "request": "eA==", "signerName": "example.com/x", "usages": ["client auth"],
            "username": "system:admin", "extra": {"authentication.kubernetes.io/node-name": ["n2"]},
        },
    }))
}

fn condition(type_: &str) -> Value {
    json!({"type": type_, "status": "True", "reason": "R", "message": "m"})
}

#[tokio::test]
async fn the_requester_is_who_the_credential_says() {
    let server = server();
    let listening = server.listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let agent = User::service_account("heddle", "heddle-agent", Some("n1"));
    let config = server.kubeconfig_of(&listening, agent.clone());
    let config = kube::Config::from_custom_kubeconfig(config, &Default::default()).await.unwrap();
    for client in [server.client_of(agent), Client::try_from(config.clone()).unwrap()] {
        let api = Api::<CertificateSigningRequest>::all(client);
        let name = format!("r{}", fastrand::u32(..));
        let made = api.create(&PostParams::default(), &asking(&name)).await.unwrap();
        assert_eq!(made.spec.username.as_deref(), Some("system:serviceaccount:heddle:heddle-agent"));
        assert_eq!(made.spec.extra.unwrap()["authentication.kubernetes.io/node-name"], ["n1"]);
        let mut changed = api.get(&name).await.unwrap();
        changed.spec.extra = None;
        changed.spec.username = Some("system:admin".into());
        let kept = api.replace(&name, &PostParams::default(), &changed).await.unwrap();
        assert_eq!(kept.spec.username.as_deref(), Some("system:serviceaccount:heddle:heddle-agent"));
    }
    let mut nobody = config;
    nobody.auth_info = Default::default();
    let admin = Api::<CertificateSigningRequest>::all(Client::try_from(nobody.clone()).unwrap());
    let made = admin.create(&PostParams::default(), &asking("a")).await.unwrap();
    assert_eq!((made.spec.username.as_deref(), made.spec.extra), (Some("system:admin"), None));
    let mut stranger = nobody;
    stranger.auth_info.token = Some("stolen".to_owned().into());
    let stranger = Api::<CertificateSigningRequest>::all(Client::try_from(stranger).unwrap());
    assert_eq!(refusal(stranger.get("a").await).code, 401);
}

#[tokio::test]
async fn approval_and_status_are_written_apart_and_once() {
    let server = server();
    let api = Api::<CertificateSigningRequest>::all(server.client());
    api.create(&PostParams::default(), &asking("a")).await.unwrap();
    let merge = |value: Value| Patch::Merge(value);
    let params = PatchParams::default();
    let early = json!({"status": {"conditions": [condition("Approved")]}});
    assert_eq!(refusal(api.patch_status("a", &params, &merge(early.clone())).await).code, 422, "not by status");
    let both = json!({"status": {"conditions": [condition("Approved"), condition("Denied")]}});
    assert_eq!(refusal(api.patch_approval("a", &params, &merge(both)).await).code, 422);

    let mut approval = early;
    approval["status"]["certificate"] = "eA==".into();
    let approved = api.patch_approval("a", &params, &merge(approval)).await.unwrap().status.unwrap();
    assert!(approved.certificate.is_none() && approved.conditions.unwrap().len() == 1);
    let certificate = json!({"status": {"certificate": "eA=="}});
    let signed = api.patch_status("a", &params, &merge(certificate)).await.unwrap().status.unwrap();
    assert!(signed.certificate.is_some() && signed.conditions.unwrap().len() == 1);
    let other = json!({"status": {"certificate": "eHg="}});
    assert_eq!(refusal(api.patch_status("a", &params, &merge(other)).await).code, 422, "a certificate stays");
    let none = json!({"status": {"conditions": []}});
    assert_eq!(refusal(api.patch_approval("a", &params, &merge(none)).await).code, 422, "an approval stays");
    let resources = Client::list_api_group_resources(&server.client(), "certificates.k8s.io/v1").await.unwrap();
    assert!(resources.resources.iter().any(|resource| resource.name == "certificatesigningrequests/approval"));
}

#[tokio::test]
async fn what_is_no_request_is_refused_and_others_are_found_by_signer() {
    let api = Api::<CertificateSigningRequest>::all(server().client());
    for change in [
        |spec: &mut Value| spec["signerName"] = "peer".into(),
        |spec: &mut Value| spec["usages"] = json!([]),
        |spec: &mut Value| spec["expirationSeconds"] = 599.into(),
    ] {
        let mut bad = serde_json::to_value(asking("a")).unwrap();
        change(&mut bad["spec"]);
        assert_eq!(refusal(api.create(&PostParams::default(), &object(bad)).await).code, 422);
    }
    api.create(&PostParams::default(), &asking("a")).await.unwrap();
    for (signer, found) in [("example.com/x", 1), ("example.com/y", 0)] {
        let list = api.list(&ListParams::default().fields(&format!("spec.signerName={signer}"))).await.unwrap();
        assert_eq!(list.items.len(), found);
    }
}
