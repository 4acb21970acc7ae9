use std::collections::{BTreeMap, BTreeSet};

use heddle_core::api::{ComputeDomainRef, IMEXDomain, IMEXNode};
use heddle_core::controller::{DomainWrite, placement};
use heddle_core::invariants::{Report, World};
use heddle_core::{names, protocol};
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, Patch, Preconditions};
use serde_json::json;

use super::{Done, Effects, name_of, patch, post};
use crate::controller::watches::compute_domain_resource;

impl Effects {
    pub(super) async fn create_domain(&self, domain: &IMEXDomain) -> Done {
        let (api, name) = (self.domains(), name_of(domain));
        let answer = api.create(&post(), domain).await;
        self.settle(&api, name, Some(name.into()), answer).await
    }

    /// Deletes, then takes our finalizer off, unless the domain has come into use in between.
    pub(super) async fn delete_domain(&self, domain: &IMEXDomain, nodes: &BTreeSet<String>) -> Done {
        if !placement::may_go(domain, &self.read(nodes).await?) {
            return Ok(());
        }
        let mut domain = domain.clone();
        if domain.metadata.deletion_timestamp.is_none() {
            match self.begin_deletion(&domain).await? {
                Some(left) => domain = left,
                None => return Ok(()),
            }
        }
        let (api, name) = (self.domains(), name_of(&domain));
        let finalizers: Vec<_> = domain.finalizers().iter().filter(|f| *f != names::DOMAIN_FINALIZER).collect();
        if finalizers.len() == domain.finalizers().len() {
            return self.settle(&api, name, None, Ok(domain.clone())).await;
        }
        let goes = finalizers.is_empty();
        let body = json!({"metadata": {"resourceVersion": domain.resource_version(), "finalizers": finalizers}});
        let answer = api.patch(name, &patch(), &Patch::Merge(body)).await;
        self.settle(&api, name, Some(name.into()), answer).await?;
        if goes {
            self.view.borrow_mut().drop_domain(name);
        }
        Ok(())
    }

    /// What is left of it: finalizers hold it.
    async fn begin_deletion(&self, domain: &IMEXDomain) -> kube::Result<Option<IMEXDomain>> {
        let name = name_of(domain);
        let preconditions = Preconditions { uid: domain.uid(), resource_version: domain.resource_version() };
        let params = DeleteParams { preconditions: Some(preconditions), ..Default::default() };
        match self.domains().delete(name, &params).await {
            Ok(answer) => {
                let left = answer.left();
                if left.is_none() {
                    self.view.borrow_mut().drop_domain(name);
                }
                Ok(left)
            }
            Err(error) => {
                self.settle(&self.domains(), name, Some(name.into()), Err(error)).await?;
                Ok(None)
            }
        }
    }

    pub(super) async fn write_domain(&self, write: DomainWrite) -> Done {
        let (api, name) = (self.domains(), name_of(&write.domain).to_string());
        let mut domain = write.domain.clone();
        if let Some(members) = &write.members {
            domain.spec.members = members.clone();
            let finalizers = domain.finalizers_mut();
            if write.domain.metadata.deletion_timestamp.is_none()
                && !finalizers.iter().any(|finalizer| finalizer == names::DOMAIN_FINALIZER)
            {
                finalizers.push(names::DOMAIN_FINALIZER.into());
            }
            let answer = api.replace(&name, &post(), &domain).await;
            let before = domain.resource_version();
            if let Ok(answer) = &answer {
                domain = answer.clone();
            }
            self.settle_change(&api, &name, &name, before.as_deref(), answer).await?;
        }
        let gone = self.gone(&write.drain_if_gone).await?;
        let nodes = self.nodes(&write).await?;
        let Some(status) = write.status(&domain, &gone, &nodes) else { return Ok(()) };
        domain.status = Some(status);
        let answer = api.replace_status(&name, &post(), &domain).await;
        self.settle_change(&api, &name, &name, domain.metadata.resource_version.as_deref(), answer).await
    }

    /// Those of the ComputeDomains that the API does not have. One of the same name with another UID is another.
    async fn gone(&self, asked: &[ComputeDomainRef]) -> kube::Result<BTreeSet<String>> {
        let mut gone = BTreeSet::new();
        for cd in asked {
            let alive = if !(names::is_object_name(&cd.namespace) && names::is_object_name(&cd.name)) {
                // An entry that was restored from the nodes has no name to ask for, and one that somebody wrote may have anything.
                let api: Api<DynamicObject> = Api::all_with(self.client.clone(), &compute_domain_resource());
                let all = api.list(&ListParams::default()).await?;
                all.items.iter().any(|found| found.metadata.uid.as_deref() == Some(&cd.uid))
            } else {
                let found = self.compute_domains(&cd.namespace).get_opt(&cd.name).await?;
                found.is_some_and(|found| found.metadata.uid.as_deref() == Some(&cd.uid))
            };
            if !alive {
                gone.insert(cd.uid.clone());
            }
        }
        Ok(gone)
    }

    async fn nodes(&self, write: &DomainWrite) -> kube::Result<Vec<IMEXNode>> {
        let known = write.nodes.iter().filter(|node| !write.reread.contains(name_of(*node))).cloned();
        let mut nodes: Vec<_> = known.collect();
        nodes.extend(self.read(&write.reread).await?);
        Ok(nodes)
    }

    /// The nodes of these names that exist, as they are now.
    async fn read(&self, names: &BTreeSet<String>) -> kube::Result<Vec<IMEXNode>> {
        let mut nodes = Vec::with_capacity(names.len());
        for name in names {
            nodes.extend(self.imex_nodes().get_opt(name).await?);
        }
        Ok(nodes)
    }

    /// Reads the domain, then its nodes, and says what is wrong with them at that instant. What was lost from the map
    /// is put back into it.
    pub(super) async fn examine(&self, domain_name: &str, nodes: BTreeSet<String>) -> Done {
        let api = self.domains();
        let Some(mut domain) = api.get_opt(domain_name).await? else { return Ok(()) };
        let copies = self.read(&nodes).await?;
        let full_name = |uid: &str| self.view.borrow().cd(uid).map(|cd| cd.full_name());
        let found = protocol::restore(&domain, &copies, full_name);
        let changed = api.get_opt(domain_name).await?.and_then(|now| now.resource_version());
        if changed != domain.resource_version() {
            return Ok(());
        }
        self.count_violations(&domain, &copies);
        for clash in &found.clashes {
            self.metrics.clashes.inc();
            tracing::error!(domain = domain_name, "{clash}");
        }
        let Some(status) = found.status else { return Ok(()) };
        tracing::warn!(
            domain = domain_name,
            "the channel map has lost what nodes have entered; it is restored from them"
        );
        domain.status = Some(status);
        let answer = api.replace_status(domain_name, &post(), &domain).await;
        self.settle(&api, domain_name, Some(domain_name.into()), answer).await
    }

    fn count_violations(&self, domain: &IMEXDomain, nodes: &[IMEXNode]) {
        let mut world =
            World { domains: BTreeMap::from([(name_of(domain).to_string(), domain.clone())]), ..Default::default() };
        for node in nodes {
            let mut node = node.clone();
            let status = node.status.get_or_insert_default();
            status.channels.retain(|_, entry| entry.domain == name_of(domain));
            world.nodes.insert(name_of(&node).to_string(), node);
        }
        for violation in Report::of(&world).all() {
            self.metrics.violated(violation.invariant);
            tracing::error!(invariant = violation.invariant, "{}", violation.what);
        }
    }
}
