//! `/metrics`, `/readyz` and `/livez`.

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use super::metrics::Metrics;
use super::readiness::Readiness;
use super::scope::Scope;

#[derive(Clone)]
pub(super) struct Probes {
    pub(super) metrics: Metrics,
    pub(super) readiness: Readiness,
    pub(super) root: Scope,
}

pub(super) fn router(probes: Probes) -> Router {
    Router::new()
        .route("/metrics", get(metrics))
        .route("/readyz", get(readyz))
        .route("/livez", get(livez))
        .with_state(probes)
}

/// OpenMetrics for whoever says that it reads it, as Prometheus does; the older format for everybody else.
async fn metrics(State(probes): State<Probes>, headers: HeaderMap) -> Response {
    let accepted = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
    let (kind, text) = if accepted.contains("application/openmetrics-text") {
        ("application/openmetrics-text; version=1.0.0; charset=utf-8", probes.metrics.encode())
    } else {
        ("text/plain; version=0.0.4; charset=utf-8", probes.metrics.encode_plain())
    };
    match text {
        Ok(text) => ([(header::CONTENT_TYPE, kind)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}

async fn readyz(State(probes): State<Probes>) -> Response {
    if let Some(cause) = probes.root.cause() {
        return (StatusCode::SERVICE_UNAVAILABLE, format!("not ready: {cause}\n")).into_response();
    }
    if probes.readiness.is_draining() {
        return (StatusCode::SERVICE_UNAVAILABLE, "not ready: shutting down\n").into_response();
    }
    let waiting = probes.readiness.waiting();
    if waiting.is_empty() {
        return "ready\n".into_response();
    }
    (StatusCode::SERVICE_UNAVAILABLE, format!("not ready: {}\n", waiting.join(", "))).into_response()
}

async fn livez(State(probes): State<Probes>) -> Response {
    match probes.root.cause() {
        None => "alive\n".into_response(),
        Some(cause) => (StatusCode::SERVICE_UNAVAILABLE, format!("not alive: {cause}\n")).into_response(),
    }
}
