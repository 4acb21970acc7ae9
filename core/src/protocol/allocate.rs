use std::collections::BTreeSet;

use super::name;
use crate::api::{ChannelEntry, ChannelState, ComputeDomainRef, IMEXDomain, IMEXDomainStatus, IsolationMode};
use crate::fault::{Fault, reason};

/// What to do for a ComputeDomain that wants a number in a domain.
#[derive(Clone, Debug, PartialEq)]
pub enum Allocate {
    /// It has this one.
    Already(u32),
    /// Its former number is being drained; ask again when the entry is gone.
    Draining,
    /// Write this status to the IMEXDomain; it then has `channel`.
    Write {
        /// The number.
        channel: u32,
        /// The whole new status.
        status: IMEXDomainStatus,
    },
}

/// Picks the next free number after the last one given, from 1 to `channel_count` − 1.
///
/// Number 0 is never given: it is what every process that asks for "the" channel gets elsewhere. Searching on from
/// the last one lets a freed number rest while others are free.
///
/// Guard of the write: the resourceVersion of `domain`.
///
/// # Errors
/// `ChannelsExhausted` when no number is free, `DomainPending` in a domain that is not for this ComputeDomain of this
/// `mode`; both may pass.
pub fn allocate(
    domain: &IMEXDomain,
    cd: &ComputeDomainRef,
    mode: IsolationMode,
    channel_count: u32,
) -> Result<Allocate, Fault> {
    super::enter::admits(domain, cd, mode)?;
    let status = domain.status.clone().unwrap_or_default();
    match status.channels.get(&cd.uid) {
        Some(entry) if entry.state == ChannelState::Active => return Ok(Allocate::Already(entry.channel)),
        Some(_) => return Ok(Allocate::Draining),
        None => {}
    }
    let used: BTreeSet<u32> = status.channels.values().map(|entry| entry.channel).collect();
    let behind = status.last_channel.saturating_add(1).max(1);
    let channel = (behind..channel_count)
        .chain(1..behind.min(channel_count))
        .find(|number| !used.contains(number))
        .ok_or_else(|| no_free(domain))?;
    let epoch = status.epoch.saturating_add(1);
    let mut status = IMEXDomainStatus { epoch, last_channel: channel, ..status };
    let compute_domain = format!("{}/{}", cd.namespace, cd.name);
    status
        .channels
        .insert(cd.uid.clone(), ChannelEntry { channel, state: ChannelState::Active, epoch, compute_domain });
    Ok(Allocate::Write { channel, status })
}

/// The fault of a domain without a free number: the same words on the node and in the ComputeDomain's condition.
pub fn no_free(domain: &IMEXDomain) -> Fault {
    let used = domain.status.as_ref().map_or(0, |status| status.channels.len());
    let text = format!("no free IMEX channel in domain {} ({used} in use)", name(domain));
    Fault::retryable(reason::CHANNELS_EXHAUSTED, text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::IsolationMode::{Channel, Domain};
    use crate::protocol::{drain, samples::*};

    fn give(domain: &mut IMEXDomain, uid: &str, count: u32) -> u32 {
        match allocate(domain, &cd(uid), Channel, count).unwrap() {
            Allocate::Write { channel, status } => {
                assert_eq!(status.epoch, domain.status.clone().unwrap_or_default().epoch + 1);
                domain.status = Some(status);
                channel
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn issue_351_and_slurm_25_11_numbers_run_from_one_to_the_last_and_never_zero() {
        let mut domain = shared("d");
        assert_eq!((1..=3).map(|n| give(&mut domain, &format!("cd-{n}"), 4)).collect::<Vec<_>>(), [1, 2, 3]);
        let fault = allocate(&domain, &cd("cd-4"), Channel, 4).unwrap_err();
        assert_eq!(fault.message, "no free IMEX channel in domain d (3 in use)");
        assert_eq!(fault.class, crate::fault::Class::Retryable);
    }

    #[test]
    fn a_freed_number_rests_while_others_are_free() {
        let mut domain = shared("d");
        give(&mut domain, "a", 5);
        domain.status.as_mut().unwrap().channels.clear();
        assert_eq!((2..=5).map(|n| give(&mut domain, &format!("cd-{n}"), 5)).collect::<Vec<_>>(), [2, 3, 4, 1]);
    }

    #[test]
    fn a_pointer_beyond_the_end_wraps() {
        let mut domain = shared("d");
        domain.status = Some(IMEXDomainStatus { last_channel: 2047, ..Default::default() });
        assert_eq!(give(&mut domain, "a", 8), 1);
        domain.status.as_mut().unwrap().last_channel = u32::MAX;
        assert_eq!(give(&mut domain, "b", 8), 2);
        for count in [0, 1] {
            assert!(allocate(&shared("d"), &cd("a"), Channel, count).is_err(), "count {count} leaves no number");
        }
    }

    #[test]
    fn the_second_asker_gets_the_first_ones_number() {
        let mut domain = shared("d");
        give(&mut domain, "a", 8);
        assert_eq!(allocate(&domain, &cd("a"), Channel, 8).unwrap(), Allocate::Already(1));
        domain.status = drain(&domain, &["a".to_string()].into());
        assert_eq!(allocate(&domain, &cd("a"), Channel, 8).unwrap(), Allocate::Draining);
    }

    #[test]
    fn an_exclusive_domain_is_for_its_own() {
        let domain = exclusive("x", "red");
        assert_eq!(allocate(&domain, &cd("green"), Domain, 8).unwrap_err().reason, reason::DOMAIN_PENDING);
        assert!(matches!(allocate(&domain, &cd("red"), Domain, 8), Ok(Allocate::Write { channel: 1, .. })));
    }
}
