//! The kubelet's side of the agent: DRA plugin servers, claims, checkpoints and CDI files.

mod cdi_store;
mod checkpoint_store;
mod claim_preparer;
mod context;
mod endpoint;
mod events;
mod folder;
pub mod front;
mod health;
pub(crate) mod lookup;
mod message;
mod metrics;
mod neighbours;
mod pods;
mod point;
mod prepare;
mod probe;
mod recovery;
mod registration;
mod server;
mod service;
mod settings;
pub(crate) mod sockets;
mod standby;
mod temporary;
mod toolkit;
mod watch;

pub use context::Driver;
pub use events::{ClaimEvents, Message as EventMessage};
pub(crate) use folder::{DiskSyncs, Durability, Folder, Found};
pub use health::{DeviceHealth, HealthBoard};
pub use message::Message;
pub use metrics::ClaimMetrics;
pub use probe::HealthProbe;
pub use server::DraServer;
pub use settings::{DraDependencies, DraSettings};
