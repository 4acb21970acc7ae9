//! The Lease as the API has it.

use heddle_core::lease::Record;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;

/// What it says of its holder.
pub(super) fn read(lease: &Lease) -> Record {
    let spec = lease.spec.clone().unwrap_or_default();
    let time = |time: Option<MicroTime>| time.map(|time| time.0.to_string()).unwrap_or_default();
    Record {
        holder: spec.holder_identity.unwrap_or_default(),
        duration_seconds: spec.lease_duration_seconds.unwrap_or_default(),
        acquired: time(spec.acquire_time),
        renewed: time(spec.renew_time),
        transitions: spec.lease_transitions.unwrap_or_default(),
    }
}

/// Puts a record into it, and leaves what others have written beside.
pub(super) fn write(lease: &mut Lease, record: &Record) {
    let time = |text: &str| text.parse().ok().map(MicroTime);
    let spec = lease.spec.get_or_insert_default();
    spec.holder_identity = Some(record.holder.clone());
    spec.lease_duration_seconds = Some(record.duration_seconds);
    spec.acquire_time = time(&record.acquired);
    spec.renew_time = time(&record.renewed);
    spec.lease_transitions = Some(record.transitions);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_comes_back_as_it_was_written() {
        let record = Record {
            holder: "a".into(),
            duration_seconds: 8,
            acquired: "2026-01-01T00:00:00.000001Z".into(),
            renewed: "2026-01-01T00:00:03Z".into(),
            transitions: 2,
        };
        let mut lease = Lease::default();
        assert_eq!(read(&lease), Record::default());
        write(&mut lease, &record);
        let wire = serde_json::to_value(&lease).unwrap();
        assert_eq!(wire["spec"]["renewTime"], "2026-01-01T00:00:03.000000Z");
        assert_eq!(read(&serde_json::from_value(wire).unwrap()), record);
    }
}
