//! From HTTP requests to the store and back. The same for sockets and for clients in this process.

use axum::body::{Body, Bytes, HttpBody};
use http::{StatusCode, header};
use http_body_util::{BodyExt, Limited};
use serde_json::Value;

use super::call::Call;
use super::discovery;
use super::represent::{Form, View};
use super::request::Request;
use super::server::ApiServer;
use super::status::{self, Outcome, bad_request};
use super::table::Include;
use super::user::User;

/// Largest body that is read; etcd's own limit is below that.
const MAX_BODY: usize = 3 << 20;

/// What goes back.
pub type Response = http::Response<Body>;

/// Answers one request.
pub async fn answer<B>(server: ApiServer, request: http::Request<B>) -> Response
where
    B: HttpBody<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    route(&server, request).await.unwrap_or_else(|status| {
        let code = StatusCode::from_u16(status.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut answer = respond(code, status::body(&status).to_string().into());
        let pause = status.details.as_ref().map_or(0, |details| details.retry_after_seconds);
        if pause > 0 {
            answer.headers_mut().insert(header::RETRY_AFTER, pause.into());
        }
        answer
    })
}

/// An answer of JSON.
pub fn respond(code: StatusCode, body: Bytes) -> Response {
    respond_with(code, Body::from(body))
}

/// An answer of JSON that may still be in the making.
pub fn respond_with(code: StatusCode, body: Body) -> Response {
    let mut response = Response::new(body);
    *response.status_mut() = code;
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
    response
}

/// 200.
pub fn ok(body: Bytes) -> Outcome<Response> {
    Ok(respond(StatusCode::OK, body))
}

async fn route<B>(server: &ApiServer, request: http::Request<B>) -> Outcome<Response>
where
    B: HttpBody<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let (head, body) = request.into_parts();
    let text = |name: header::HeaderName| {
        head.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned()
    };
    let Some(mut request) = Request::parse(&head.method, &head.uri)? else {
        if matches!(head.uri.path(), "/healthz" | "/livez" | "/readyz") {
            return Ok(Response::new(Body::from("ok")));
        }
        let found = {
            let store = server.store();
            discovery::answer(&store.catalog, store.minor, head.uri.path())
        };
        return ok(found.ok_or_else(status::no_such_path)?.to_string().into());
    };
    request.user_agent = text(header::USER_AGENT);
    request.user = match head.extensions.get::<User>() {
        Some(user) => user.clone(),
        None => server.who(&text(header::AUTHORIZATION))?,
    };
    server.fault(&request)?;
    let content_type = text(header::CONTENT_TYPE);
    let body = Limited::new(body, MAX_BODY).collect().await;
    let body = body.map_err(|e| status::failure(413, "RequestEntityTooLarge", e))?.to_bytes();
    let body = decode(&body, &content_type)?;
    let include = Include::parse(request.query.get("includeObject"));
    let form = Form::parse(&text(header::ACCEPT), include);
    let mut store = server.store();
    let resource = store.catalog.find(&request.group, &request.version, &request.plural);
    let resource = resource.ok_or_else(status::no_such_path)?;
    let view = View::new(resource.clone(), form, store.clock.clone());
    Call { store: &mut store, request: &request, resource: &resource, view, content_type: &content_type }.run(body)
}

fn decode(body: &[u8], content_type: &str) -> Outcome<Value> {
    if body.is_empty() {
        return Ok(Value::Null);
    }
    if content_type.contains("protobuf") {
        return Err(status::unsupported_media(
            "this server reads JSON and YAML, not protobuf: use `kubectl create -f FILE` or `kubectl apply -f FILE`",
        ));
    }
    if content_type.contains("yaml") {
        let text = std::str::from_utf8(body).map_err(bad_request)?;
        return serde_saphyr::from_str(text).map_err(|e| bad_request(format!("the body is no YAML: {e}")));
    }
    serde_json::from_slice(body).map_err(|e| bad_request(format!("the body is no JSON: {e}")))
}
