use heddle_core::fault::Fault;
use heddle_core::imex::{DomainConfig, Identity, Verdict, shown_name, verdict};
use tokio::time::Instant;
use tonic::Status;

use super::Keeper;
use crate::runner::service::{Order, Wish};

impl Keeper {
    pub(super) async fn obey(&mut self, order: Order) {
        let Order { wish, no_claims_prepared, done } = order;
        // That no claim is prepared was the word of somebody who has gone: another may have granted one since.
        if done.is_closed() {
            return tracing::info!("an order is dropped, its agent has gone");
        }
        let result = match wish {
            Wish::Serve(config, identity) => self.apply(config, identity, no_claims_prepared).await,
            Wish::Renew(domain, identity) => self.renew(&domain, &identity),
            Wish::Stop => self.stop(no_claims_prepared).await,
        };
        // Whoever asked may have gone away.
        let _ = done.send(result.map(|()| self.state.borrow().clone()));
    }

    async fn apply(
        &mut self,
        given: DomainConfig,
        identity: Option<Identity>,
        no_claims_prepared: bool,
    ) -> Result<(), Status> {
        let given = match &identity {
            Some(identity) => self.files.with_identity(given, identity),
            None => given,
        };
        self.files.daemon_settings(&given).map_err(|fault| Status::invalid_argument(fault.message))?;
        let listens_at = self.daemon.as_ref().and(self.listens_at);
        match verdict(self.config.as_ref(), &given, listens_at, no_claims_prepared) {
            Verdict::Nothing => {
                self.show(identity.as_ref()).and_then(|()| self.mend()).map_err(internal)?;
            }
            Verdict::Refuse(why) => return Err(Status::failed_precondition(why)),
            Verdict::Hosts => {
                self.show(identity.as_ref()).map_err(internal)?;
                self.files.remember(Some(&given)).and_then(|()| self.files.write_hosts(&given)).map_err(internal)?;
                self.config = Some(given);
                self.signal.want(Instant::now());
            }
            Verdict::Start | Verdict::Restart => {
                self.files.remember(Some(&given)).map_err(internal)?;
                tracing::info!(domain = given.domain, "the IMEX domain to serve is a new one");
                self.config = Some(given);
                // Not under a daemon that runs: it would show the new domain's to the peers of the old.
                self.end_daemon().await;
                // Written as part of the start, which is tried again where it cannot be.
                self.identity = identity;
                self.failures = 0;
                self.start_at = None;
                self.start();
            }
        }
        Ok(())
    }

    /// Lets the daemon show this identity, of the name that it was started with.
    fn show(&mut self, identity: Option<&Identity>) -> Result<(), Fault> {
        let Some(identity) = identity else { return Ok(()) };
        self.identity = Some(identity.clone());
        if self.files.identity_note().is_some_and(|note| note.hash == identity.hash()) {
            return Ok(());
        }
        self.files.write_identity(Some(identity))?;
        tracing::info!(name = identity.name, "nvidia-imex gets another certificate");
        self.signal.want(Instant::now());
        self.publish_identity();
        Ok(())
    }

    fn renew(&mut self, domain: &str, identity: &Identity) -> Result<(), Status> {
        let Some(config) = self.config.as_ref().filter(|config| config.domain == domain) else {
            return Err(Status::failed_precondition(format!("the daemon does not serve IMEX domain {domain}")));
        };
        if shown_name(&config.settings) != Some(identity.name.as_str()) {
            let text = format!("the daemon was not started with the name {}; that takes a restart", identity.name);
            return Err(Status::failed_precondition(text));
        }
        self.show(Some(identity)).map_err(internal)
    }

    pub(super) fn publish_identity(&self) {
        let name = self.config.as_ref().and_then(|config| shown_name(&config.settings)).unwrap_or_default().to_owned();
        let note = self.files.identity_note().filter(|_| !name.is_empty()).unwrap_or_default();
        self.publish(|state| {
            state.identity = name;
            state.identity_sha256 = note.hash;
            state.identity_not_after_unix = note.not_after;
        });
    }

    async fn stop(&mut self, no_claims_prepared: bool) -> Result<(), Status> {
        if let Some(config) = &self.config {
            if !no_claims_prepared {
                return Err(Status::failed_precondition(format!(
                    "the daemon of domain {} is not ended: the agent has not said that no claim is prepared",
                    config.domain
                )));
            }
            self.files.remember(None).map_err(internal)?;
            (self.config, self.identity, self.start_at) = (None, None, None);
            self.end_daemon().await;
        }
        // Said first: what cannot be swept must not leave a domain that is served by nobody.
        self.publish_identity();
        self.publish(|state| {
            state.domain.clear();
            state.node_map_sha256.clear();
            state.message = "the node serves no IMEX domain".into();
        });
        self.files.write_identity(None).map_err(internal)
    }
}

fn internal(fault: Fault) -> Status {
    Status::internal(fault.message)
}
