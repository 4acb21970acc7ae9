//! What the kubelet knows of the claims of its pods. Pure: the calls themselves are made elsewhere.

use std::collections::{BTreeMap, BTreeSet};

use heddle_proto::dra::v1 as dra;
use k8s_openapi::api::resource::v1::ResourceClaim;

/// Claims by namespace and name, as in the kubelet: a new claim of an old name has to wait for the old one's end.
#[derive(Clone, Debug, Default)]
pub struct Claims(BTreeMap<(String, String), ClaimInfo>);

/// One claim.
#[derive(Clone, Debug)]
struct ClaimInfo {
    uid: String,
    /// Pods that use it.
    pods: BTreeSet<String>,
    /// Devices by driver.
    drivers: BTreeMap<String, Vec<dra::Device>>,
    /// In memory only.
    prepared: bool,
    /// An unprepare is under way.
    leaving: bool,
}

/// Claims by driver: the arguments of one call each.
pub type Batches = BTreeMap<String, Vec<dra::Claim>>;

/// A device of a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimDevice<'a> {
    /// The driver's name.
    pub driver: &'a str,
    /// What the driver said.
    pub device: &'a dra::Device,
}

/// The claim's drivers. Fails if it is not allocated.
pub fn drivers(claim: &ResourceClaim) -> Result<BTreeSet<String>, String> {
    let allocation = claim.status.as_ref().and_then(|status| status.allocation.as_ref());
    let name = claim.metadata.name.as_deref().unwrap_or_default();
    let allocation = allocation.ok_or_else(|| format!("ResourceClaim {name}: not allocated"))?;
    let results = allocation.devices.as_ref().and_then(|devices| devices.results.as_ref());
    Ok(results.into_iter().flatten().map(|result| result.driver.clone()).collect())
}

impl Claims {
    /// What a new kubelet process finds in its checkpoint: everything but whether a claim is prepared.
    pub fn after_restart(mut self) -> Self {
        for claim in self.0.values_mut() {
            claim.prepared = false;
            claim.leaving = false;
        }
        self
    }

    /// Notes that the pod uses these claims and says what is to be prepared.
    pub fn begin(&mut self, pod_uid: &str, claims: &[ResourceClaim]) -> Result<Batches, String> {
        let mut batches = Batches::new();
        for claim in claims {
            let drivers = drivers(claim)?;
            let (namespace, name) = key(claim);
            let uid = claim.metadata.uid.clone().unwrap_or_default();
            let info = self.0.entry((namespace.clone(), name.clone())).or_insert_with(|| ClaimInfo {
                uid: uid.clone(),
                pods: BTreeSet::new(),
                drivers: drivers.into_iter().map(|driver| (driver, Vec::new())).collect(),
                prepared: false,
                leaving: false,
            });
            if info.uid != uid {
                return Err(format!(
                    "old ResourceClaim with same name {name} and different UID {} still exists (previous pod \
                     force-deleted?!)",
                    info.uid
                ));
            }
            if info.leaving {
                return Err(format!("ResourceClaim {name} is being unprepared for an earlier pod"));
            }
            info.pods.insert(pod_uid.to_owned());
            if info.prepared {
                continue;
            }
            for driver in info.drivers.keys() {
                let claim = dra::Claim { namespace: namespace.clone(), uid: uid.clone(), name: name.clone() };
                batches.entry(driver.clone()).or_default().push(claim);
            }
        }
        Ok(batches)
    }

    /// Takes a driver's answer; what it prepared before an error counts.
    pub fn answered(
        &mut self,
        driver: &str,
        asked: &[dra::Claim],
        answer: BTreeMap<String, dra::NodePrepareResourceResponse>,
    ) -> Result<(), String> {
        let answers = answer.len();
        for (uid, result) in answer {
            let Some(claim) = asked.iter().find(|claim| claim.uid == uid) else {
                return Err(format!("NodePrepareResources returned result for unknown claim UID {uid}"));
            };
            if !result.error.is_empty() {
                let (name, error) = (&claim.name, result.error);
                return Err(format!("NodePrepareResources failed for ResourceClaim {name}: {error}"));
            }
            // A repeated Prepare replaces what an earlier, partly failed one brought.
            if let Some(info) = self.0.get_mut(&(claim.namespace.clone(), claim.name.clone())) {
                info.drivers.insert(driver.to_owned(), result.devices);
            }
        }
        match asked.len() as i64 - answers as i64 {
            0 => Ok(()),
            skipped => Err(format!("NodePrepareResources skipped {skipped} ResourceClaims")),
        }
    }

    /// All drivers have prepared these claims.
    pub fn prepared(&mut self, batches: &Batches) {
        for claim in batches.values().flatten() {
            if let Some(info) = self.0.get_mut(&(claim.namespace.clone(), claim.name.clone())) {
                info.prepared = true;
            }
        }
    }

    /// The pod is gone: says what is to be unprepared, which are the claims that no other pod uses. Others forget
    /// the pod at once.
    pub fn leave(&mut self, pod_uid: &str) -> Batches {
        let mut batches = Batches::new();
        for ((namespace, name), info) in self.0.iter_mut().filter(|(_, info)| info.pods.contains(pod_uid)) {
            if info.pods.len() > 1 {
                info.pods.remove(pod_uid);
                continue;
            }
            info.leaving = true;
            for driver in info.drivers.keys() {
                let claim = dra::Claim { namespace: namespace.clone(), uid: info.uid.clone(), name: name.clone() };
                batches.entry(driver.clone()).or_default().push(claim);
            }
        }
        batches
    }

    /// The drivers have unprepared these claims, or could not.
    pub fn left(&mut self, pod_uid: &str, done: bool) {
        self.0.retain(|_, info| {
            let ours = info.leaving && info.pods.contains(pod_uid);
            if ours {
                info.leaving = false;
            }
            !(ours && done)
        });
    }

    /// Checks a driver's answer to Unprepare.
    pub fn check_unprepared(
        asked: &[dra::Claim],
        answer: &BTreeMap<String, dra::NodeUnprepareResourceResponse>,
    ) -> Result<(), String> {
        for (uid, result) in answer {
            let Some(claim) = asked.iter().find(|claim| claim.uid == *uid) else {
                return Err(format!("NodeUnprepareResources returned result for unknown claim UID {uid}"));
            };
            if !result.error.is_empty() {
                let (name, error) = (&claim.name, &result.error);
                return Err(format!("NodeUnprepareResources failed for ResourceClaim {name}: {error}"));
            }
        }
        match asked.len() as i64 - answer.len() as i64 {
            0 => Ok(()),
            skipped => Err(format!("NodeUnprepareResources skipped {skipped} ResourceClaims")),
        }
    }

    /// The claim's devices for a request, or for all: exactly those that name it or name none.
    pub fn devices<'a>(
        &'a self,
        namespace: &str,
        name: &str,
        request: Option<&'a str>,
    ) -> Option<impl Iterator<Item = ClaimDevice<'a>>> {
        let info = self.0.get(&(namespace.to_owned(), name.to_owned()))?;
        let wanted = move |device: &dra::Device| {
            request.is_none_or(|request| {
                device.request_names.is_empty() || device.request_names.iter().any(|name| name == request)
            })
        };
        let devices = info
            .drivers
            .iter()
            .flat_map(|(driver, devices)| devices.iter().map(move |device| ClaimDevice { driver, device }));
        Some(devices.filter(move |entry| wanted(entry.device)))
    }

    /// All pods that hold claims.
    pub fn pods(&self) -> BTreeSet<String> {
        self.0.values().flat_map(|info| info.pods.iter().cloned()).collect()
    }
}

fn key(claim: &ResourceClaim) -> (String, String) {
    let metadata = &claim.metadata;
    (metadata.namespace.clone().unwrap_or_default(), metadata.name.clone().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn claim(name: &str, uid: &str) -> ResourceClaim {
        serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": "ns", "uid": uid},
            "spec": {},
            "status": {"allocation": {"devices": {"results": [
                {"driver": "d", "pool": "n", "device": "slot-0", "request": "r"}]}}},
        }))
        .unwrap()
    }

    fn answer(entries: &[(&str, &str)]) -> BTreeMap<String, dra::NodePrepareResourceResponse> {
        let device = |uid: &str| dra::Device {
            request_names: vec!["r".into()],
            cdi_device_ids: vec![format!("k/c={uid}")],
            ..Default::default()
        };
        entries
            .iter()
            .map(|(uid, error)| {
                let response = dra::NodePrepareResourceResponse { devices: vec![device(uid)], error: (*error).into() };
                ((*uid).to_owned(), response)
            })
            .collect()
    }

    fn prepare(claims: &mut Claims, pod: &str, name: &str, uid: &str) -> usize {
        let batches = claims.begin(pod, &[claim(name, uid)]).unwrap();
        for (driver, asked) in &batches {
            claims.answered(driver, asked, answer(&[(uid, "")])).unwrap();
        }
        claims.prepared(&batches);
        batches.values().map(Vec::len).sum()
    }

    #[test]
    fn once_per_life_and_again_after_a_restart() {
        let mut claims = Claims::default();
        assert_eq!(prepare(&mut claims, "p1", "a", "u"), 1);
        assert_eq!(prepare(&mut claims, "p2", "a", "u"), 0);
        let mut claims = claims.after_restart();
        assert_eq!(claims.devices("ns", "a", None).unwrap().count(), 1);
        assert_eq!(prepare(&mut claims, "p3", "a", "u"), 1);
        assert_eq!(claims.devices("ns", "a", None).unwrap().count(), 1);
    }

    #[test]
    fn unprepared_with_the_last_pod_only() {
        let mut claims = Claims::default();
        prepare(&mut claims, "p1", "a", "u");
        prepare(&mut claims, "p2", "a", "u");
        assert!(claims.leave("p1").is_empty());
        assert_eq!(claims.leave("p2")["d"][0].uid, "u");
        assert!(claims.begin("p3", &[claim("a", "u")]).unwrap_err().contains("being unprepared"));
        claims.left("p2", false);
        assert!(claims.pods().contains("p2"));
        assert_eq!(claims.leave("p2").len(), 1);
        claims.left("p2", true);
        assert!(claims.pods().is_empty());
    }

    #[test]
    fn a_failed_prepare_is_unprepared_too() {
        let mut claims = Claims::default();
        let batches = claims.begin("p", &[claim("a", "u")]).unwrap();
        let err = claims.answered("d", &batches["d"], answer(&[("u", "no channel")])).unwrap_err();
        assert_eq!(err, "NodePrepareResources failed for ResourceClaim a: no channel");
        assert_eq!(claims.leave("p").len(), 1);
    }

    #[test]
    fn one_entry_per_claim_and_no_other() {
        let mut claims = Claims::default();
        let batches = claims.begin("p", &[claim("a", "u"), claim("b", "v")]).unwrap();
        let err = claims.answered("d", &batches["d"], answer(&[("u", "")])).unwrap_err();
        assert_eq!(err, "NodePrepareResources skipped 1 ResourceClaims");
        let err = claims.answered("d", &batches["d"], answer(&[("x", "")])).unwrap_err();
        assert_eq!(err, "NodePrepareResources returned result for unknown claim UID x");
        assert!(claims.answered("d", &batches["d"], answer(&[("u", ""), ("v", "")])).is_ok());
    }

    #[test]
    fn a_new_claim_of_an_old_name_waits() {
        let mut claims = Claims::default();
        prepare(&mut claims, "p1", "a", "u");
        assert!(claims.begin("p2", &[claim("a", "other")]).unwrap_err().contains("still exists"));
    }

    #[test]
    fn requests_select_devices_by_exact_name() {
        let mut claims = Claims::default();
        prepare(&mut claims, "p", "a", "u");
        let count = |request| claims.devices("ns", "a", request).unwrap().count();
        assert_eq!((count(None), count(Some("r")), count(Some("r/sub"))), (1, 1, 0));
    }

    #[test]
    fn an_unallocated_claim_is_an_error() {
        let mut bare = claim("a", "u");
        bare.status = None;
        assert_eq!(Claims::default().begin("p", &[bare]).unwrap_err(), "ResourceClaim a: not allocated");
    }
}
