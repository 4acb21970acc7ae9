//! A real `kubectl`, where there is one: what `heddle demo --serve` promises.

use std::io::Write;
use std::path::Path;

use super::*;

const MANIFEST: &str = "
apiVersion: v1
kind: Namespace
metadata: {name: team}
---
apiVersion: resource.nvidia.com/v1beta1
kind: ComputeDomain
metadata: {name: green, namespace: team}
spec: {channel: {resourceClaimTemplate: {name: green-channel}}}
---
apiVersion: v1
kind: Pod
metadata: {name: p, namespace: team}
spec:
  containers: [{name: c, image: i, env: [{name: A, value: '1'}]}]
";

/// What it prints; `None` if there is no kubectl on this machine.
async fn kubectl(dir: &Path, arguments: &[&str]) -> Option<String> {
    let mut command = tokio::process::Command::new("kubectl");
    command.arg("--kubeconfig").arg(dir.join("config")).arg("--cache-dir").arg(dir.join("cache")).args(arguments);
    let output = match command.output().await {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return None,
        output => output.unwrap(),
    };
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "kubectl {arguments:?}: {out}{err}");
    Some(out.into_owned())
}

#[tokio::test]
async fn kubectl_applies_shows_describes_and_deletes() {
    let server = server();
    with_crds(&server.client()).await;
    let listening = server.listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let dir = tempfile::tempdir().unwrap();
    let config = serde_json::to_string(&server.kubeconfig(&listening)).unwrap();
    std::fs::write(dir.path().join("config"), config).unwrap();
    let mut file = std::fs::File::create(dir.path().join("manifest.yaml")).unwrap();
    file.write_all(MANIFEST.as_bytes()).unwrap();
    let file = dir.path().join("manifest.yaml");
    let file = file.to_str().unwrap();

    let Some(applied) = kubectl(dir.path(), &["apply", "--validate=false", "-f", file]).await else {
        eprintln!("no kubectl on this machine: nothing tried");
        return;
    };
    assert!(applied.contains("computedomain.resource.nvidia.com/green created"), "{applied}");
    let again = kubectl(dir.path(), &["apply", "-f", file]).await.unwrap();
    assert!(again.contains("pod/p unchanged"), "{again}");
    let shown = kubectl(dir.path(), &["get", "cd,pods", "-n", "team", "-o", "wide"]).await.unwrap();
    assert!(shown.contains("MODE") && shown.contains("green") && shown.contains("Pending"), "{shown}");
    let all = kubectl(dir.path(), &["get", "all", "-n", "team"]).await.unwrap();
    assert!(all.contains("pod/p"), "{all}");
    let described = kubectl(dir.path(), &["describe", "pod", "p", "-n", "team"]).await.unwrap();
    assert!(described.contains("Image:"), "{described}");
    kubectl(dir.path(), &["delete", "pod", "p", "-n", "team"]).await.unwrap();
    kubectl(dir.path(), &["delete", "namespace", "team"]).await.unwrap();
    assert!(server.objects("resource.nvidia.com", "computedomains").is_empty());
}
