//! Applying and deleting manifests, as kubectl would.

use anyhow::Context;
use kube::api::{Api, DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};

use super::manifest::Document;

/// Creates the objects of these documents, what others refer to first. Namespaces that they live in and that no
/// document makes are made too.
///
/// # Errors
/// The object that was refused, and why.
pub async fn apply(client: &Client, documents: &[Document]) -> anyhow::Result<()> {
    for namespace in missing_namespaces(client, documents).await? {
        create(client, &namespace).await?;
    }
    let mut ordered: Vec<_> = documents.iter().collect();
    ordered.sort_by_key(|document| document.kind.rank());
    for document in ordered {
        create(client, document).await?;
    }
    Ok(())
}

/// Deletes the objects of these documents, in the reverse order.
///
/// # Errors
/// The object that could not be deleted, and why.
pub async fn delete(client: &Client, documents: &[Document]) -> anyhow::Result<()> {
    let mut ordered: Vec<_> = documents.iter().collect();
    ordered.sort_by_key(|document| std::cmp::Reverse(document.kind.rank()));
    for document in ordered {
        match api(client, document).delete(document.name(), &DeleteParams::background()).await {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            Err(error) => return Err(error).with_context(|| format!("{} could not be deleted", title(document))),
        }
    }
    Ok(())
}

async fn create(client: &Client, document: &Document) -> anyhow::Result<()> {
    let object: DynamicObject = serde_json::from_value(document.object.clone())?;
    let created = api(client, document).create(&PostParams::default(), &object).await;
    match created {
        Ok(_) => Ok(()),
        // What every cluster has already (the namespace `default`, our device classes) takes the file's fields.
        Err(kube::Error::Api(status)) if status.code == 409 => {
            let patch = Patch::Merge(&object);
            api(client, document).patch(&object.name_any(), &PatchParams::default(), &patch).await.map(drop)
        }
        Err(error) => Err(error),
    }
    .with_context(|| format!("{} was refused", title(document)))
}

fn api(client: &Client, document: &Document) -> Api<DynamicObject> {
    let resource = document.kind.resource();
    if document.kind.namespaced {
        Api::namespaced_with(client.clone(), document.namespace(), &resource)
    } else {
        Api::all_with(client.clone(), &resource)
    }
}

fn title(document: &Document) -> String {
    format!("{} {} of {}", document.kind.kind, document.name(), document.file.display())
}

async fn missing_namespaces(client: &Client, documents: &[Document]) -> anyhow::Result<Vec<Document>> {
    let made = |name: &str| documents.iter().any(|d| d.kind.kind == "Namespace" && d.name() == name);
    let mut wanted: Vec<_> = (documents.iter())
        .map(Document::namespace)
        .filter(|namespace| !namespace.is_empty() && !made(namespace))
        .collect();
    wanted.sort_unstable();
    wanted.dedup();
    let namespaces: Api<k8s_openapi::api::core::v1::Namespace> = Api::all(client.clone());
    let mut missing = Vec::new();
    for name in wanted {
        if namespaces.get_opt(name).await?.is_none() {
            missing.push(Document::namespace_named(name));
        }
    }
    Ok(missing)
}
