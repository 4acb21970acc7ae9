use heddle_core::api::ComputeDomainStatus;
use heddle_core::controller::{Cd, Note, TemplateKey, is_template_of, without_finalizer};
use heddle_core::names;
use kube::api::Patch;
use serde_json::{Value, json};

use super::{Done, Effects, patch};

/// Fields of a status that a merge patch must name to take them away.
const STATUS_FIELDS: [&str; 5] = ["status", "conditions", "channel", "cliques", "nodes"];

impl Effects {
    pub(super) async fn mark(&self, cd: &Cd) -> Done {
        let api = self.compute_domains(&cd.reference.namespace);
        let annotations = json!({names::DOUBT_ANNOTATION: jiff::Timestamp::now().to_string()});
        let body = json!({"metadata": {"resourceVersion": cd.resource_version, "annotations": annotations}});
        let answer = api.patch(&cd.reference.name, &patch(), &Patch::Merge(body)).await;
        self.settle(&api, &cd.reference.name, Some(cd.uid().into()), answer).await
    }

    pub(super) async fn guard(&self, cd: &Cd) -> Done {
        let mut finalizers = cd.finalizers.clone();
        finalizers.push(names::FINALIZER.into());
        self.put_finalizers(cd, &finalizers).await
    }

    /// A template of it that is found now is released first.
    pub(super) async fn unguard(&self, cd: &Cd, template: Option<TemplateKey>, notes: Vec<Note>) -> Done {
        if let Some(key) = template
            && self.find_template(&key, |found| is_template_of(found, cd.uid())).await?
        {
            return Ok(());
        }
        self.put_finalizers(cd, &without_finalizer(&cd.finalizers)).await?;
        for note in notes {
            self.note(cd, note).await;
        }
        Ok(())
    }

    async fn put_finalizers(&self, cd: &Cd, finalizers: &[String]) -> Done {
        let api = self.compute_domains(&cd.reference.namespace);
        let body = json!({"metadata": {"resourceVersion": cd.resource_version, "finalizers": finalizers}});
        let answer = api.patch(&cd.reference.name, &patch(), &Patch::Merge(body)).await;
        let goes = cd.deleting && finalizers.is_empty();
        self.settle(&api, &cd.reference.name, Some(cd.uid().into()), answer).await?;
        if goes {
            self.view.borrow_mut().drop_cd(cd.uid());
        }
        Ok(())
    }

    pub(super) async fn write_status(&self, cd: &Cd, status: &ComputeDomainStatus, notes: Vec<Note>) -> Done {
        let api = self.compute_domains(&cd.reference.namespace);
        let mut value = serde_json::to_value(status).map_err(kube::Error::SerdeError)?;
        if let Value::Object(fields) = &mut value {
            for field in STATUS_FIELDS {
                fields.entry(field).or_insert(Value::Null);
            }
        }
        let body = json!({"metadata": {"resourceVersion": cd.resource_version}, "status": value});
        let answer = api.patch_status(&cd.reference.name, &patch(), &Patch::Merge(body)).await;
        let before = cd.resource_version.as_deref();
        self.settle_change(&api, &cd.reference.name, cd.uid(), before, answer).await?;
        for note in notes {
            self.note(cd, note).await;
        }
        Ok(())
    }
}
