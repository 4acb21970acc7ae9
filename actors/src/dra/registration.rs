//! How the kubelet finds a driver.

use std::path::PathBuf;

use heddle_proto::SUPPORTED_VERSIONS;
use heddle_proto::registration::registration_server::Registration;
use heddle_proto::registration::{InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse};
use tonic::{Request, Response, Status};

use super::context::Driver;
use super::message::Message as ServerMessage;
use crate::runtime::Addr;

/// Answers on a registration socket.
#[derive(Clone, Debug)]
pub(crate) struct RegistrationService {
    pub(crate) driver: Driver,
    /// The service socket.
    pub(crate) endpoint: PathBuf,
    pub(crate) server: Addr<ServerMessage>,
}

#[tonic::async_trait]
impl Registration for RegistrationService {
    /// The kubelet gives this one second, so nothing is asked of anybody.
    async fn get_info(&self, _request: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        Ok(Response::new(PluginInfo {
            r#type: "DRAPlugin".into(),
            name: self.driver.name().into(),
            endpoint: self.endpoint.to_string_lossy().into_owned(),
            supported_versions: SUPPORTED_VERSIONS.iter().map(|version| (*version).to_owned()).collect(),
        }))
    }

    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        let RegistrationStatus { plugin_registered, error } = request.into_inner();
        let refused = (!plugin_registered).then_some(error);
        self.server.tell(ServerMessage::Registered { driver: self.driver, refused });
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}
