use heddle_core::controller::{TemplateKey, is_our_template, template_key, without_finalizer};
use heddle_core::names;
use k8s_openapi::api::resource::v1::ResourceClaimTemplate;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams, Patch, Preconditions};
use serde_json::json;

use super::{Done, Effects, name_of, patch, post};

impl Effects {
    fn templates(&self, template: &ResourceClaimTemplate) -> (Api<ResourceClaimTemplate>, TemplateKey) {
        let key = template_key(&template.metadata).unwrap_or_default();
        (Api::namespaced(self.client.clone(), &key.0), key)
    }

    /// A quota, an admission webhook or a namespace that is going away: what the API server says is the ComputeDomain's to
    /// know.
    pub(super) async fn create_template(&self, cd_uid: &str, template: &ResourceClaimTemplate) -> Done {
        let (api, key) = self.templates(template);
        let answer = api.create(&post(), template).await;
        let refused = match &answer {
            Err(kube::Error::Api(status)) if [400, 403, 422].contains(&status.code) => Some(status.message.clone()),
            _ => None,
        };
        self.view.borrow_mut().set_refusal(cd_uid, refused);
        self.settle(&api, &key.1, Some(format!("{}/{}", key.0, key.1)), answer).await
    }

    pub(super) async fn mend_template(&self, template: &ResourceClaimTemplate) -> Done {
        let (api, key) = self.templates(template);
        let body = json!({"metadata": {
            "resourceVersion": template.resource_version(),
            "labels": template.labels(),
            "finalizers": template.finalizers(),
        }});
        let answer = api.patch(&key.1, &patch(), &Patch::Merge(body)).await;
        let before = template.resource_version();
        self.settle_change(&api, &key.1, &format!("{}/{}", key.0, key.1), before.as_deref(), answer).await
    }

    /// Deletes first: while our finalizer holds the template nobody else's can take its name, and what a crash leaves
    /// behind is still recognised.
    pub(super) async fn release_template(&self, template: &ResourceClaimTemplate, unless_alive: Option<&str>) -> Done {
        let (api, key) = self.templates(template);
        if let Some(uid) = unless_alive
            && self.is_alive(&key.0, uid).await?
        {
            return Ok(());
        }
        let mut current = template.clone();
        if template.metadata.deletion_timestamp.is_none() {
            let preconditions = Preconditions { uid: template.uid(), resource_version: None };
            let params = DeleteParams { preconditions: Some(preconditions), ..Default::default() };
            match api.delete(name_of(template), &params).await {
                Ok(answer) => match answer.left() {
                    Some(object) => current = object,
                    None => return self.released(&key),
                },
                Err(kube::Error::Api(status)) if status.code == 404 => return self.released(&key),
                Err(error) => return self.settle(&api, &key.1, None, Err(error)).await,
            }
        }
        let finalizers = without_finalizer(current.finalizers());
        if finalizers.len() == current.finalizers().len() {
            return self.settle(&api, &key.1, None, Ok(current)).await;
        }
        let body = json!({"metadata": {"resourceVersion": current.resource_version(), "finalizers": finalizers}});
        let answer = api.patch(&key.1, &patch(), &Patch::Merge(body)).await;
        self.settle(&api, &key.1, Some(format!("{}/{}", key.0, key.1)), answer).await?;
        if finalizers.is_empty() { self.released(&key) } else { Ok(()) }
    }

    fn released(&self, key: &TemplateKey) -> Done {
        self.view.borrow_mut().drop_template(key);
        Ok(())
    }

    /// Whether the namespace has a ComputeDomain of this UID; the view may not know it yet.
    pub(super) async fn is_alive(&self, namespace: &str, uid: &str) -> kube::Result<bool> {
        let found = self.compute_domains(namespace).list(&ListParams::default()).await?;
        Ok(found.items.iter().any(|cd| cd.metadata.uid.as_deref() == Some(uid)))
    }

    /// Reads a template that the watch may not bring, and puts it into the view if it is `wanted`.
    pub(super) async fn find_template(
        &self,
        key: &TemplateKey,
        wanted: impl Fn(&ResourceClaimTemplate) -> bool,
    ) -> kube::Result<bool> {
        let api: Api<ResourceClaimTemplate> = Api::namespaced(self.client.clone(), &key.0);
        let found = api.get_opt(&key.1).await?.filter(wanted);
        let is_there = found.is_some();
        if let Some(template) = found {
            self.put(template);
        }
        Ok(is_there)
    }

    /// Looks for templates of ours that have lost their label, which no watch brings. Their ComputeDomains mend them, or
    /// they are released if these are gone.
    pub async fn find_stripped(&self) {
        let api: Api<ResourceClaimTemplate> = Api::all(self.client.clone());
        let unlabelled = ListParams::default().labels(&format!("!{}", names::COMPUTE_DOMAIN_LABEL));
        let found = async {
            let mut stripped = api.list_metadata(&unlabelled).await?.items;
            stripped.retain(|template| template.finalizers().iter().any(|finalizer| finalizer == names::FINALIZER));
            for key in stripped.iter().filter_map(|template| template_key(&template.metadata)) {
                self.find_template(&key, is_our_template).await?;
            }
            Ok::<_, kube::Error>(())
        };
        if let Err(error) = found.await {
            tracing::warn!("templates that have lost their label cannot be looked for: {error}");
        }
    }

    /// Looks whether a foreign template is still there.
    pub async fn recheck(&self, key: TemplateKey) {
        let api: Api<ResourceClaimTemplate> = Api::namespaced(self.client.clone(), &key.0);
        let mut answer = api.get_opt(&key.1).await;
        if let Ok(Some(template)) = &mut answer {
            template.managed_fields_mut().clear();
        }
        let mut view = self.view.borrow_mut();
        match answer {
            Ok(Some(template)) => view.put_template(template),
            Ok(None) => view.drop_template(&key),
            Err(error) => tracing::warn!(namespace = key.0, template = key.1, "a template cannot be read: {error}"),
        }
        // If it is still there, this decides nothing new but asks for the next look.
        view.touch_template(&key);
    }
}
