use std::collections::BTreeMap;

use k8s_openapi::api::resource::v1::{
    CELDeviceSelector, DeviceClaim, DeviceClaimConfiguration, DeviceRequest, DeviceSelector, ExactDeviceRequest,
    OpaqueDeviceConfiguration, ResourceClaimSpec, ResourceClaimTemplate, ResourceClaimTemplateSpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::runtime::RawExtension;

use super::view::template_label;
use super::{Cd, View, Write, template_owner};
use crate::api::{ChannelConfig, ComputeDomainSpec, IsolationMode};
use crate::condition::enumerate;
use crate::fault::{Fault, reason};
use crate::{names, slices};

/// Where the template of a ComputeDomain stands.
#[derive(Clone, Debug, PartialEq)]
pub enum TemplateStep {
    /// It is as it should be.
    Ready,
    /// This brings it nearer.
    Do(Write),
    /// Nothing can be done until another object goes, or ever.
    Blocked(Fault, Option<Write>),
}

/// The ResourceClaimTemplate that a ComputeDomain should have.
///
/// The claims made from it carry the ComputeDomain's label, and ask for one slot, or, with `isolationMode: Domain`,
/// for all of a node whose daemon can be moved: then the scheduler itself keeps every other ComputeDomain off that node.
pub fn wanted(cd: &Cd, spec: &ComputeDomainSpec) -> ResourceClaimTemplate {
    let (mode, count) = match spec.isolation_mode {
        IsolationMode::Channel => ("ExactCount", Some(1)),
        IsolationMode::Domain => ("All", None),
    };
    // Slots of nodes whose daemon is the host's lead to no domain of one's own: the scheduler passes these nodes by.
    let selectors = (spec.isolation_mode == IsolationMode::Domain).then(|| {
        let expression = slices::not_host_managed();
        vec![DeviceSelector { cel: Some(CELDeviceSelector { expression }) }]
    });
    let exactly = ExactDeviceRequest {
        device_class_name: names::CHANNEL_DEVICE_CLASS.into(),
        selectors,
        allocation_mode: Some(mode.into()),
        count,
        ..Default::default()
    };
    let config = ChannelConfig::new(cd.uid(), &cd.reference.name, spec.channel.allocation_mode);
    let opaque = OpaqueDeviceConfiguration {
        driver: names::DRIVER.into(),
        parameters: RawExtension(serde_json::to_value(config).unwrap_or_default()),
    };
    let devices = DeviceClaim {
        requests: Some(vec![DeviceRequest {
            name: names::CHANNEL_REQUEST.into(),
            exactly: Some(exactly),
            ..Default::default()
        }]),
        config: Some(vec![DeviceClaimConfiguration {
            opaque: Some(opaque),
            requests: Some(vec![names::CHANNEL_REQUEST.into()]),
        }]),
        constraints: None,
    };
    let owner = (names::COMPUTE_DOMAIN_LABEL.to_string(), cd.uid().to_string());
    let target = (names::TARGET_LABEL.to_string(), names::TARGET_WORKLOAD.to_string());
    ResourceClaimTemplate {
        metadata: ObjectMeta {
            namespace: Some(cd.reference.namespace.clone()),
            name: Some(spec.channel.resource_claim_template.name.clone()),
            labels: Some([owner.clone(), target].into()),
            finalizers: Some(vec![names::FINALIZER.into()]),
            ..Default::default()
        },
        spec: ResourceClaimTemplateSpec {
            metadata: Some(ObjectMeta { labels: Some([owner].into()), ..Default::default() }),
            spec: ResourceClaimSpec { devices: Some(devices) },
        },
    }
}

/// Anybody can put our label on a template; ours has the finalizer too.
pub fn ours(template: &ResourceClaimTemplate) -> bool {
    template.metadata.finalizers.iter().flatten().any(|finalizer| finalizer == names::FINALIZER)
}

/// One of ours, of the ComputeDomain with this UID.
pub fn is_of(template: &ResourceClaimTemplate, uid: &str) -> bool {
    ours(template) && template_owner(template) == Some(uid)
}

/// The UID of the ComputeDomain in the config of the claims made from the template.
pub(super) fn configured(template: &ResourceClaimTemplate) -> Option<&str> {
    let config = template.spec.spec.devices.iter().flat_map(|devices| devices.config.iter().flatten());
    let mut ours = config.filter_map(|config| config.opaque.as_ref()).filter(|opaque| opaque.driver == names::DRIVER);
    ours.next()?.parameters.0.get("domainID")?.as_str()
}

/// It is being deleted, and others than us keep it, in words: there is nothing for us to do about it.
fn held(template: &ResourceClaimTemplate) -> Option<String> {
    let metadata = &template.metadata;
    if metadata.deletion_timestamp.is_none() || ours(template) {
        return None;
    }
    let what = format!(
        "ResourceClaimTemplate {}/{}",
        metadata.namespace.as_deref().unwrap_or_default(),
        metadata.name.as_deref().unwrap_or_default()
    );
    Some(held_by(&what, metadata))
}

/// Why an object that is being deleted is still there, without a finalizer of ours.
pub(super) fn held_by(what: &str, metadata: &ObjectMeta) -> String {
    let finalizers = metadata.finalizers.iter().flatten();
    let finalizers = enumerate(finalizers.map(|finalizer| format!("{finalizer:.80}")));
    format!("{what} is being deleted, and kept by the finalizers of others ({finalizers})")
}

/// Whether the claims made from the template ask for all slots of a node.
pub(super) fn asks_all(template: &ResourceClaimTemplate) -> bool {
    let requests = template.spec.spec.devices.iter().flat_map(|devices| devices.requests.iter().flatten());
    let mut asked = requests.filter_map(|request| request.exactly.as_ref());
    asked.any(|exactly| exactly.allocation_mode.as_deref() == Some("All"))
}

/// The next step towards the template of a living ComputeDomain.
///
/// The API lets nobody change a template's spec, so one of ours that is not as it should be (one of the existing
/// driver, for instance) is deleted and made anew; claims made from it are not touched. What is not ours is never
/// touched either.
pub fn step(view: &View, cd: &Cd, spec: &ComputeDomainSpec) -> TemplateStep {
    let template_name = &spec.channel.resource_claim_template.name;
    if !names::is_object_name(template_name) {
        let text = format!(
            "spec.channel.resourceClaimTemplate.name {template_name:.80?} cannot be the name of an object: lower case letters, \
             digits, '-' and '.' only, at most 253; delete the ComputeDomain and create it anew"
        );
        return TemplateStep::Blocked(Fault::permanent(reason::INVALID_SPEC, text), None);
    }
    let wanted = wanted(cd, spec);
    let key = (cd.reference.namespace.clone(), spec.channel.resource_claim_template.name.clone());
    let Some(found) = view.template(&key) else {
        let create = Write::CreateTemplate { cd: cd.uid().into(), template: Box::new(wanted) };
        return match view.refusal(cd.uid()) {
            None => TemplateStep::Do(create),
            Some(why) => {
                let text = format!("the API server refuses ResourceClaimTemplate {}/{}: {why}", key.0, key.1);
                TemplateStep::Blocked(Fault::retryable(reason::TEMPLATE_REFUSED, text), Some(create))
            }
        };
    };
    let owner = template_owner(found);
    // No watch tells when one without our label goes.
    let recheck = template_label(found).is_none().then(|| Write::RecheckTemplate(key.clone()));
    if let Some(what) = held(found) {
        let text = format!("{what}: the one of ComputeDomain {} is made when it is gone", cd.full_name());
        return TemplateStep::Blocked(Fault::retryable(reason::TEMPLATE_CONFLICT, text), recheck);
    }
    if owner != Some(cd.uid()) {
        return TemplateStep::Blocked(foreign(view, cd, &key, owner), recheck);
    }
    // What it has been served as stays, also where its spec has lost that.
    let lost = ours(found) && asks_all(found) && spec.isolation_mode != IsolationMode::Domain;
    let wanted = match lost {
        true => self::wanted(cd, &ComputeDomainSpec { isolation_mode: IsolationMode::Domain, ..spec.clone() }),
        false => wanted,
    };
    let going = found.metadata.deletion_timestamp.is_some();
    let same =
        found.spec.spec == wanted.spec.spec && holds(labels(&found.spec.metadata), labels(&wanted.spec.metadata));
    if going || !same {
        return TemplateStep::Do(Write::ReleaseTemplate { template: Box::new(found.clone()), unless_alive: None });
    }
    let finalizers = found.metadata.finalizers.clone().unwrap_or_default();
    let guarded = finalizers.iter().any(|finalizer| finalizer == names::FINALIZER);
    if guarded && holds(found.metadata.labels.as_ref(), wanted.metadata.labels.as_ref()) {
        return TemplateStep::Ready;
    }
    let mut mended = found.clone();
    mended.metadata.labels.get_or_insert_default().extend(wanted.metadata.labels.unwrap_or_default());
    if !guarded {
        mended.metadata.finalizers.get_or_insert_default().push(names::FINALIZER.into());
    }
    TemplateStep::Do(Write::MendTemplate(Box::new(mended)))
}

fn foreign(view: &View, cd: &Cd, key: &super::TemplateKey, owner: Option<&str>) -> Fault {
    let what = format!("ResourceClaimTemplate {}/{}", key.0, key.1);
    let conflict = |text: String| Fault::permanent(reason::TEMPLATE_CONFLICT, text);
    match owner {
        None => {
            let text = format!(
                "{what} exists and is not ours; delete it, or name another one in ComputeDomain {}",
                cd.full_name()
            );
            conflict(text)
        }
        Some(uid) => match view.cd(uid) {
            Some(other) if other.deleting => {
                let text =
                    format!("{what} still belongs to ComputeDomain {}, which is being deleted", other.full_name());
                Fault::retryable(reason::TEMPLATE_CONFLICT, text)
            }
            Some(other) => {
                let text = format!(
                    "{what} belongs to ComputeDomain {}; name another one in ComputeDomain {}",
                    other.full_name(),
                    cd.full_name()
                );
                conflict(text)
            }
            None => {
                let text = format!("{what} is left over from a ComputeDomain that is gone, it is being removed");
                Fault::retryable(reason::TEMPLATE_CONFLICT, text)
            }
        },
    }
}

fn labels(metadata: &Option<ObjectMeta>) -> Option<&BTreeMap<String, String>> {
    metadata.as_ref()?.labels.as_ref()
}

fn holds(found: Option<&BTreeMap<String, String>>, wanted: Option<&BTreeMap<String, String>>) -> bool {
    wanted.into_iter().flatten().all(|(key, value)| found.and_then(|found| found.get(key)) == Some(value))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use k8s_openapi::jiff::Timestamp;

    use super::*;
    use crate::controller::samples::*;

    fn stepped(cd: &Cd, found: Option<ResourceClaimTemplate>, others: Vec<Cd>) -> TemplateStep {
        let mut view = View::default();
        found.into_iter().for_each(|template| view.put_template(template));
        others.into_iter().for_each(|other| view.put_cd(other));
        step(&view, cd, cd.spec.as_ref().unwrap())
    }

    fn made(cd: &Cd) -> ResourceClaimTemplate {
        wanted(cd, cd.spec.as_ref().unwrap())
    }

    #[test]
    fn a_shared_one_asks_for_one_slot_an_exclusive_one_for_all() {
        let request = |cd: &Cd| made(cd).spec.spec.devices.unwrap().requests.unwrap()[0].exactly.clone().unwrap();
        let green = request(&sample_cd("green", IsolationMode::Channel));
        assert_eq!((green.allocation_mode.as_deref(), green.count), (Some("ExactCount"), Some(1)));
        let red = request(&sample_cd("red", IsolationMode::Domain));
        assert_eq!((red.allocation_mode.as_deref(), red.count), (Some("All"), None));
    }

    #[test]
    fn its_claims_name_the_compute_domain() {
        let green = sample_cd("green", IsolationMode::Channel);
        let template = made(&green);
        assert_eq!(template.spec.metadata.unwrap().labels.unwrap()[names::COMPUTE_DOMAIN_LABEL], green.uid());
        let config = template.spec.spec.devices.unwrap().config.unwrap()[0].opaque.clone().unwrap();
        let config: ChannelConfig = serde_json::from_value(config.parameters.0).unwrap();
        assert_eq!((config.domain_id.as_str(), config.compute_domain.as_deref()), (green.uid(), Some("green")));
    }

    #[test]
    fn labels_and_finalizer_are_mended_a_spec_is_replaced() {
        let green = sample_cd("green", IsolationMode::Channel);
        assert_eq!(stepped(&green, Some(made(&green)), vec![]), TemplateStep::Ready);
        let mut bare = made(&green);
        bare.metadata.finalizers = None;
        bare.metadata.labels.as_mut().unwrap().remove(names::TARGET_LABEL);
        bare.metadata.labels.as_mut().unwrap().insert("theirs".into(), "kept".into());
        let TemplateStep::Do(Write::MendTemplate(mended)) = stepped(&green, Some(bare), vec![]) else { panic!() };
        assert_eq!(mended.metadata.labels.as_ref().unwrap()["theirs"], "kept");
        assert_eq!(stepped(&green, Some(*mended), vec![]), TemplateStep::Ready);
        let mut other_spec = made(&green);
        other_spec.spec.spec.devices.as_mut().unwrap().config = None;
        assert!(matches!(stepped(&green, Some(other_spec), vec![]), TemplateStep::Do(Write::ReleaseTemplate { .. })));
        let mut unlabelled_claims = made(&green);
        unlabelled_claims.spec.metadata = None;
        assert!(matches!(
            stepped(&green, Some(unlabelled_claims), vec![]),
            TemplateStep::Do(Write::ReleaseTemplate { .. })
        ));
        assert!(matches!(stepped(&green, None, vec![]), TemplateStep::Do(Write::CreateTemplate { .. })));
    }

    #[test]
    fn one_that_others_keep_is_not_written_to() {
        let green = sample_cd("green", IsolationMode::Channel);
        let mut going = made(&green);
        going.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
        going.metadata.finalizers.as_mut().unwrap().push("other.io/hold".into());
        let TemplateStep::Do(Write::ReleaseTemplate { .. }) = stepped(&green, Some(going.clone()), vec![]) else {
            panic!()
        };
        going.metadata.finalizers = Some(vec!["other.io/hold".into()]);
        let TemplateStep::Blocked(fault, None) = stepped(&green, Some(going.clone()), vec![]) else { panic!() };
        assert_eq!(fault.reason, reason::TEMPLATE_CONFLICT);
        assert!(fault.message.contains("team/green-channel is being deleted"), "{fault}");
        assert!(fault.message.contains("(other.io/hold)"), "{fault}");
        going.metadata.labels = None;
        let stripped = stepped(&green, Some(going), vec![]);
        assert!(matches!(stripped, TemplateStep::Blocked(_, Some(Write::RecheckTemplate(_)))), "no watch tells of it");
    }

    #[test]
    fn a_name_that_no_object_can_have_is_told_and_not_tried() {
        let long = "a".repeat(253);
        let longer = "a".repeat(254);
        for (name, fits) in [
            ("green-channel", true),
            ("0.a-b.9", true),
            (&long, true),
            (&longer, false),
            ("Green", false),
            ("a_b", false),
            ("-a", false),
            ("a..b", false),
            ("../a", false),
            ("a/b", false),
            ("größe", false),
        ] {
            let mut green = sample_cd("green", IsolationMode::Channel);
            green.spec.as_mut().unwrap().channel.resource_claim_template.name = name.into();
            match stepped(&green, None, vec![]) {
                TemplateStep::Do(Write::CreateTemplate { .. }) => assert!(fits, "{name}"),
                TemplateStep::Blocked(fault, None) => assert!(!fits && fault.reason == reason::INVALID_SPEC, "{fault}"),
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn what_the_api_server_refuses_is_told_and_tried_again() {
        let green = sample_cd("green", IsolationMode::Channel);
        let mut view = View::default();
        view.set_refusal(green.uid(), Some("exceeded quota".into()));
        assert!(view.dirty.cds.contains(green.uid()), "its condition says so");
        let TemplateStep::Blocked(fault, Some(Write::CreateTemplate { .. })) =
            step(&view, &green, green.spec.as_ref().unwrap())
        else {
            panic!()
        };
        assert!(fault.reason == reason::TEMPLATE_REFUSED && fault.message.ends_with(": exceeded quota"), "{fault}");
        view.put_template(made(&green));
        assert_eq!(step(&view, &green, green.spec.as_ref().unwrap()), TemplateStep::Ready);
    }

    #[test]
    fn one_of_ours_is_known_without_its_label() {
        let green = sample_cd("green", IsolationMode::Channel);
        for label in [None, Some(uid("other"))] {
            let mut stripped = made(&green);
            let labels = stripped.metadata.labels.as_mut().unwrap();
            labels.remove(names::COMPUTE_DOMAIN_LABEL);
            labels.extend(label.map(|uid| (names::COMPUTE_DOMAIN_LABEL.to_owned(), uid)));
            let TemplateStep::Do(Write::MendTemplate(mended)) = stepped(&green, Some(stripped.clone()), vec![]) else {
                panic!()
            };
            assert_eq!(*mended, made(&green));
            stripped.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
            let step = stepped(&green, Some(stripped.clone()), vec![]);
            assert!(matches!(step, TemplateStep::Do(Write::ReleaseTemplate { .. })), "{step:?}");
            // For another it is what green's template ever is.
            let mut second = sample_cd("second", IsolationMode::Channel);
            second.spec = green.spec.clone();
            let TemplateStep::Blocked(fault, _) = stepped(&second, Some(stripped), vec![green.clone()]) else {
                panic!()
            };
            assert!(fault.message.contains("belongs to ComputeDomain team/green"), "{fault}");
        }
    }

    #[test]
    fn what_is_not_ours_is_never_touched() {
        let green = sample_cd("green", IsolationMode::Channel);
        let mut theirs = made(&green);
        theirs.metadata.labels = None;
        theirs.metadata.finalizers = None;
        let TemplateStep::Blocked(fault, Some(Write::RecheckTemplate(_))) = stepped(&green, Some(theirs), vec![])
        else {
            panic!()
        };
        assert_eq!(fault.reason, reason::TEMPLATE_CONFLICT);
        assert!(fault.message.contains("team/green-channel exists and is not ours"), "{fault}");

        let mut second = sample_cd("second", IsolationMode::Channel);
        second.spec = green.spec.clone();
        let TemplateStep::Blocked(fault, None) = stepped(&second, Some(made(&green)), vec![green.clone()]) else {
            panic!()
        };
        assert!(fault.message.contains("belongs to ComputeDomain team/green"), "{fault}");
        let going = Cd { deleting: true, ..green.clone() };
        let TemplateStep::Blocked(fault, None) = stepped(&second, Some(made(&green)), vec![going]) else { panic!() };
        assert_eq!(fault.class, crate::fault::Class::Retryable);
    }
}
