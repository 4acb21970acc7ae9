//! An in-memory Kubernetes API server, in process and over HTTP.
//!
//! It keeps what clients can observe: one order of all writes, optimistic locking, watches from a version with 410 Gone
//! once the history is forgotten, bookmarks and streaming lists, finalizers, grace periods, owners, subresources, the
//! patches of Kubernetes, and schemas and rules of CRDs, which also shape what was stored under other ones. It leaves out what none of the components here depend on:
//! authorization, admission webhooks, parameters of policies, protobuf, and conversion between versions other
//! than those of Events. Garbage is collected within the write that makes it, so that a run is the same every time.
//!
//! A request goes `http` → `request` → `call` → `write`/`delete`/`apply` → `store` → `watch`, and an answer
//! back through `represent`.

mod apply;
mod bounds;
mod builtin;
mod call;
mod cel;
mod columns;
mod convert;
mod crd;
mod csr;
mod defaults;
mod delete;
mod discovery;
mod dra;
mod fields;
mod follow;
mod history;
mod http;
mod jsonpath;
mod listen;
mod names;
mod openapi;
mod owners;
mod patch;
mod pods;
mod policy;
mod represent;
mod request;
mod resource;
mod scale;
mod schema;
mod selector;
mod server;
mod shape;
mod status;
mod store;
mod table;
mod taints;
mod user;
mod watch;
mod write;

pub use self::builtin::validate_builtin;
pub use self::crd::validate;
pub use self::history::{History, Lagged};
pub use self::listen::Listening;
pub use self::request::{Query, Request, Verb};
pub use self::resource::GroupResource;
pub use self::server::{ApiServer, Options};
pub use self::status::FieldError;
pub use self::user::User;
pub use self::watch::{Change, EventType};
