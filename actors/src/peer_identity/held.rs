use std::sync::Arc;

use heddle_core::identity::{Chain, identity_name, renew_at, usable};
use heddle_core::imex::Identity;

/// A key with its certificate.
#[derive(Clone)]
pub(super) struct Held {
    pub(super) key_pem: String,
    pub(super) certificate_pem: String,
    pub(super) authority_pem: String,
    pub(super) chain: Chain,
    renew_at: i64,
}

impl Held {
    pub(super) fn new(key_pem: String, certificate_pem: String, authority_pem: String, chain: Chain) -> Self {
        let renew_at = renew_at(chain.not_before, chain.not_after, fastrand::f64());
        Self { key_pem, certificate_pem, authority_pem, chain, renew_at }
    }

    /// Whether it can be shown to peers in the domain now, whose object has this UID if it is known.
    pub(super) fn usable(&self, domain: &str, uid: Option<&str>, now: i64) -> Result<(), String> {
        usable(&self.chain, domain, now)?;
        match uid {
            Some(uid) if uid != self.chain.authority_of => {
                Err(format!("it is of an earlier IMEXDomain {domain}, whose authority went with it"))
            }
            _ => Ok(()),
        }
    }

    /// When to look at it again, Unix seconds.
    pub(super) fn due(&self, now: i64) -> i64 {
        if now < self.renew_at { self.renew_at } else { self.chain.not_after }
    }

    /// Another is to be asked for.
    pub(super) fn is_due(&self, now: i64) -> bool {
        now >= self.renew_at
    }

    /// The last sixth of its life: it should have been renewed long ago.
    pub(super) fn is_late(&self, now: i64) -> bool {
        now >= self.chain.not_after - (self.chain.not_after - self.chain.not_before) / 6
    }

    pub(super) fn identity(&self, domain: &str) -> Arc<Identity> {
        Arc::new(Identity {
            name: identity_name(domain),
            certificate_pem: self.certificate_pem.clone(),
            key_pem: self.key_pem.clone(),
            authority_pem: self.authority_pem.clone(),
            not_after: self.chain.not_after,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The clock of a node that is set by hand, or by its first answer from a time server.
    #[test]
    fn a_clock_that_jumps_forth_and_back_costs_no_certificate() {
        let (made, life) = (1_800_000_000, 9 * 24 * 3600);
        let chain = Chain {
            names: vec![identity_name("d")],
            of_key: true,
            signed_by_authority: true,
            both_sides: true,
            not_before: made,
            not_after: made + life,
            authority_of: "u".into(),
        };
        let held = Held::new(String::new(), String::new(), String::new(), chain);
        let says = |now: i64| held.usable("d", Some("u"), now).err().unwrap_or_default();
        let ten_years = 10 * 365 * 24 * 3600;
        for (now, why, due, late) in [
            (made + 60, "", false, false),
            (made + ten_years, "it has expired", true, true),
            (made + 120, "", false, false),
            (made - ten_years, "is the clock of this node or of the controller's wrong?", false, false),
            (made + life - 60, "", true, true),
            (made + 180, "", false, false),
        ] {
            let said = says(now);
            assert!(if why.is_empty() { said.is_empty() } else { said.contains(why) }, "{now}: {said}");
            assert_eq!((held.is_due(now), held.is_late(now)), (due, late), "{now}");
            // It is looked at again in the future, if there is anything to look for.
            assert!(held.due(now) > now || !said.is_empty(), "{now}");
        }
    }
}
