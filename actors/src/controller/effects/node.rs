use heddle_core::api::{EpochMark, IMEXNode, IMEXNodeSpec, Refusal};
use heddle_core::controller::placement;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, Patch, Preconditions};
use serde_json::json;

use super::{Done, Effects, name_of, patch};

impl Effects {
    /// The domain is read after the copy of the node that guards the write: see [`heddle_core::protocol`].
    pub(super) async fn move_node(&self, node: &IMEXNode, target: &str) -> Done {
        let Some(domain) = self.domains().get_opt(target).await? else { return Ok(()) };
        let Some(spec) = placement::move_in(node, &domain) else { return Ok(()) };
        self.write_spec(node, spec).await?;
        tracing::info!(node = name_of(node), from = node.spec.domain, to = target, "the node moves");
        Ok(())
    }

    pub(super) async fn announce(&self, node: &IMEXNode, next: Option<String>) -> Done {
        self.write_spec(node, IMEXNodeSpec { next, ..node.spec.clone() }).await
    }

    pub(super) async fn refuse(&self, node: &IMEXNode, refused: Option<Refusal>) -> Done {
        self.write_spec(node, IMEXNodeSpec { refused, ..node.spec.clone() }).await
    }

    pub(super) async fn fence(&self, node: &IMEXNode, mark: EpochMark) -> Done {
        self.write_spec(node, IMEXNodeSpec { fence: Some(mark), ..node.spec.clone() }).await
    }

    async fn write_spec(&self, node: &IMEXNode, spec: IMEXNodeSpec) -> Done {
        let (api, name) = (self.imex_nodes(), name_of(node));
        let mut body = json!({"metadata": {"resourceVersion": node.resource_version()}, "spec": spec});
        // In a merge patch what is absent stays, and what is null goes.
        body["spec"]["next"] = json!(spec.next);
        body["spec"]["refused"] = json!(spec.refused);
        let answer = api.patch(name, &patch(), &Patch::Merge(body)).await;
        self.settle_change(&api, name, name, node.metadata.resource_version.as_deref(), answer).await
    }

    /// Both objects are read anew: a Node that has just come, or a channel that has just been entered, keeps it.
    pub(super) async fn prune(&self, node: &IMEXNode) -> Done {
        let (api, name) = (self.imex_nodes(), name_of(node));
        let nodes: Api<Node> = Api::all(self.client.clone());
        if nodes.get_opt(name).await?.is_some() {
            return Ok(());
        }
        let Some(current) = api.get_opt(name).await? else { return Ok(()) };
        if current.status.as_ref().is_some_and(|status| !status.channels.is_empty()) {
            return Ok(());
        }
        let preconditions = Preconditions { uid: current.uid(), resource_version: current.resource_version() };
        let params = DeleteParams { preconditions: Some(preconditions), ..Default::default() };
        match api.delete(name, &params).await {
            Ok(_) => {
                self.view.borrow_mut().drop_imex_node(name);
                Ok(())
            }
            Err(error) => self.settle(&api, name, Some(name.into()), Err(error)).await,
        }
    }
}
