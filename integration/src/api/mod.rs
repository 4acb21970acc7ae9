//! An in-memory Kubernetes API server, in process and over HTTP.

mod apply;
mod cel;
mod columns;
mod convert;
mod crd;
mod defaults;
mod delete;
mod discovery;
mod dra;
mod history;
mod http;
mod jsonpath;
mod listen;
mod patch;
mod pods;
mod represent;
mod request;
mod resource;
mod schema;
mod selector;
mod server;
mod shape;
mod status;
mod store;
mod table;
mod watch;
mod write;

pub use self::crd::validate;
pub use self::history::{History, Lagged};
pub use self::listen::Listening;
pub use self::request::{Query, Request, Verb};
pub use self::resource::GroupResource;
pub use self::server::{ApiServer, Options};
pub use self::status::FieldError;
pub use self::watch::{Change, EventType};
