//! Registers the plugin behind one registration socket.

use std::path::{Path, PathBuf};

use heddle_proto::registration as proto;
use tonic::Status;

use super::{Machine, dial::Connection, plugin::Services, plugins::Plugins};

const GET_INFO: &str = "/pluginregistration.Registration/GetInfo";
const NOTIFY: &str = "/pluginregistration.Registration/NotifyRegistrationStatus";
const TYPE: &str = "DRAPlugin";

/// A plugin that was registered through a socket.
#[derive(Clone, Debug)]
pub struct Registration {
    /// The driver's name.
    pub driver: String,
    /// Its service socket.
    pub endpoint: PathBuf,
}

/// Asks the plugin who it is, registers it, and tells it so. The connection is closed in the end.
pub async fn register(machine: &Machine, plugins: &Plugins, socket: &Path) -> Result<Registration, String> {
    let limits = &machine.options.limits;
    let mut connection = Connection::dial(socket, limits.dial, limits.reconnect.0)
        .await
        .map_err(|err| format!("dial failed at socket {}: {}", socket.display(), err.message()))?;
    machine.counters.get_info_calls.one();
    let info: proto::PluginInfo = connection
        .unary(GET_INFO, &proto::InfoRequest {}, limits.get_info)
        .await
        .map_err(|err| format!("failed to get plugin info using RPC GetInfo: {err}"))?;
    let mut registrar = Registrar { machine, connection };
    if info.r#type != TYPE {
        let kind = info.r#type;
        let socket = socket.display();
        return Err(registrar
            .refuse(format!("no handler registered for plugin type: {kind} at socket {socket}"))
            .await);
    }
    let driver = info.name;
    let endpoint = if info.endpoint.is_empty() { socket.to_owned() } else { PathBuf::from(info.endpoint) };
    let services = match Services::choose(&info.supported_versions) {
        Ok(services) => services,
        Err(err) => {
            let at = endpoint.display();
            let why = format!(
                "plugin validation failed with err: invalid supported gRPC versions of DRA driver plugin {driver} at \
                 endpoint {at}: {err}"
            );
            return Err(registrar.refuse(why).await);
        }
    };
    if let Err(err) = plugins.add(&driver, endpoint.clone(), services) {
        return Err(registrar.refuse(format!("plugin registration failed with err: {err}")).await);
    }
    if let Err(err) = registrar.notify(true, String::new()).await {
        plugins.remove(&driver, &endpoint);
        return Err(format!("failed to send registration status at socket {}: {err}", socket.display()));
    }
    machine.counters.registrations.one();
    Ok(Registration { driver, endpoint })
}

struct Registrar<'a> {
    machine: &'a Machine,
    connection: Connection,
}

impl Registrar<'_> {
    /// Tells the plugin why it is not registered.
    async fn refuse(&mut self, why: String) -> String {
        self.machine.counters.refusals.one();
        match self.notify(false, format!("RegisterPlugin error -- {why}")).await {
            Ok(()) => why,
            Err(err) => format!("{why}; could not tell the plugin: {err}"),
        }
    }

    async fn notify(&mut self, plugin_registered: bool, error: String) -> Result<(), Status> {
        let status = proto::RegistrationStatus { plugin_registered, error };
        let limit = self.machine.options.limits.notify;
        let _: proto::RegistrationStatusResponse = self.connection.unary(NOTIFY, &status, limit).await?;
        Ok(())
    }
}
