//! What this process asks of the API server, counted where requests leave it.

use std::task::{Context, Poll};

use futures::future::BoxFuture;
use kube::client::Body;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use tower::{Layer, Service};

/// Requests by verb, resource and answer. A layer for a [`kube::client::ClientBuilder`].
#[derive(Clone, Debug, Default)]
pub struct ApiRequests {
    requests: Family<Labels, Counter>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    verb: &'static str,
    resource: String,
    code: u16,
}

impl ApiRequests {
    /// Adds the counter to a registry.
    pub fn register(&self, registry: &mut Registry) {
        let help = "Requests to the API server, by verb, resource and HTTP status; 0 if there was no answer";
        registry.register("api_requests", help, self.requests.clone());
    }

    fn count(&self, verb: &'static str, resource: &str, code: u16) {
        self.requests.get_or_create(&Labels { verb, resource: resource.to_owned(), code }).inc();
    }
}

impl<S> Layer<S> for ApiRequests {
    type Service = Counted<S>;

    fn layer(&self, inner: S) -> Counted<S> {
        Counted { inner, requests: self.clone() }
    }
}

/// A client's service whose requests are counted.
#[derive(Clone, Debug)]
pub struct Counted<S> {
    inner: S,
    requests: ApiRequests,
}

impl<S, B> Service<http::Request<Body>> for Counted<S>
where
    S: Service<http::Request<Body>, Response = http::Response<B>>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<S::Response, S::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let resource = resource(request.uri().path()).to_owned();
        let verb = verb(request.method(), request.uri());
        let requests = self.requests.clone();
        let answer = self.inner.call(request);
        Box::pin(async move {
            let answer = answer.await;
            let code = answer.as_ref().map_or(0, |answer| answer.status().as_u16());
            requests.count(verb, &resource, code);
            answer
        })
    }
}

/// The verb as RBAC has it, but for `list` and `get`, which look alike from outside.
fn verb(method: &http::Method, uri: &http::Uri) -> &'static str {
    let watch = || uri.query().is_some_and(|query| query.split('&').any(|part| part == "watch=true"));
    match method.as_str() {
        "GET" if watch() => "watch",
        "GET" => "get",
        "POST" => "create",
        "PUT" => "update",
        "PATCH" => "patch",
        "DELETE" => "delete",
        _ => "other",
    }
}

/// `resourceclaims` or `resourceclaims/status` of a path: names and namespaces would be labels without bounds.
fn resource(path: &str) -> &str {
    let mut rest = path.trim_matches('/');
    for _ in 0..if rest.starts_with("api/") { 2 } else { 3 } {
        rest = rest.split_once('/').map_or("", |(_, after)| after);
    }
    if let Some((_, after)) = rest.strip_prefix("namespaces/").and_then(|named| named.split_once('/')) {
        rest = after;
    }
    let mut parts = rest.splitn(3, '/');
    match (parts.next(), parts.next(), parts.next()) {
        // Only `status` is ever asked for; anything else is some proxy's path.
        (Some("resourceclaims"), _, Some("status")) => "resourceclaims/status",
        (Some("imexnodes"), _, Some("status")) => "imexnodes/status",
        (Some("imexdomains"), _, Some("status")) => "imexdomains/status",
        (Some("computedomains"), _, Some("status")) => "computedomains/status",
        (Some(plural), ..) => plural,
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_has_a_resource_and_no_name() {
        for (path, expected) in [
            ("/apis/resource.k8s.io/v1/namespaces/team/resourceclaims/c/status", "resourceclaims/status"),
            ("/apis/resource.k8s.io/v1/namespaces/team/resourceclaims/c", "resourceclaims"),
            ("/apis/resource.k8s.io/v1/resourceslices", "resourceslices"),
            ("/apis/imex.heddle.dev/v1alpha1/imexnodes/node-1/status", "imexnodes/status"),
            ("/api/v1/nodes/node-1", "nodes"),
            ("/api/v1/namespaces/team", "namespaces"),
            ("/version", ""),
        ] {
            assert_eq!(resource(path), expected, "{path}");
        }
    }

    #[tokio::test]
    async fn every_request_is_counted_with_its_answer() {
        let requests = ApiRequests::default();
        let server = tower::service_fn(|request: http::Request<Body>| async move {
            let code = if request.method() == "GET" { 200 } else { 409 };
            http::Response::builder().status(code).body(Body::empty())
        });
        let mut client = requests.layer(server);
        for (method, uri) in [
            ("GET", "/api/v1/nodes/a"),
            ("GET", "/api/v1/nodes/b"),
            ("GET", "/api/v1/nodes?limit=5&watch=true"),
            ("PATCH", "/apis/imex.heddle.dev/v1alpha1/imexnodes/a/status"),
        ] {
            let request = http::Request::builder().method(method).uri(uri).body(Body::empty()).unwrap();
            client.call(request).await.unwrap();
        }
        let mut registry = Registry::with_prefix("heddle");
        requests.register(&mut registry);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        for line in [
            r#"heddle_api_requests_total{verb="get",resource="nodes",code="200"} 2"#,
            r#"heddle_api_requests_total{verb="watch",resource="nodes",code="200"} 1"#,
            r#"heddle_api_requests_total{verb="patch",resource="imexnodes/status",code="409"} 1"#,
        ] {
            assert!(text.contains(line), "{text}");
        }
    }
}
