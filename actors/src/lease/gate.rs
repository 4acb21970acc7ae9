//! The one way by which a leader's writes leave the process.

use std::future::poll_fn;
use std::pin::pin;
use std::task::{Context, Poll};

use futures::future::BoxFuture;
use http::Method;
use kube::Client;
use kube::client::Body;
use tower::{BoxError, Service};

use super::leadership::Leadership;

/// A write that was not sent, or whose answer was not waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this process does not lead (any more), so it writes nothing")]
pub struct NotLeading;

/// A client that reads always, and writes while its process leads.
pub(super) struct Gated {
    client: Client,
    leadership: Leadership,
}

impl Gated {
    pub(super) fn new(client: Client, leadership: Leadership) -> Self {
        Self { client, leadership }
    }
}

impl Service<http::Request<Body>> for Gated {
    type Response = http::Response<Body>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let (client, leadership) = (self.client.clone(), self.leadership.clone());
        if matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS) {
            return Box::pin(async move { Ok(client.send(request).await?) });
        }
        Box::pin(async move {
            let mut sent = pin!(client.send(request));
            // Before each step of it, not only before the first: it may wait for a connection or a token, or be sent anew
            // because the server has asked for a pause, and the process may have been stopped meanwhile.
            let sending = poll_fn(|cx| match leadership.leads() {
                true => sent.as_mut().poll(cx).map(|answer| answer.map_err(BoxError::from)),
                false => Poll::Ready(Err(NotLeading.into())),
            });
            let over = async {
                while let Some(left) = leadership.left() {
                    tokio::time::sleep(left).await;
                }
            };
            tokio::select! {
                biased;
                answer = sending => answer,
                () = over => Err(NotLeading.into()),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::Api;
    use kube::api::PostParams;
    use tokio::sync::Notify;

    use super::*;
    use crate::lease::clock;

    /// A server that counts what reaches it, and answers writes when it is told to.
    fn server(seen: Arc<AtomicUsize>, answers: Arc<Notify>) -> Client {
        let service = tower::service_fn(move |request: http::Request<Body>| {
            let (seen, answers) = (seen.clone(), answers.clone());
            async move {
                seen.fetch_add(1, Ordering::SeqCst);
                if request.method() != Method::GET {
                    answers.notified().await;
                }
                let body = r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"}}"#;
                Ok::<_, std::convert::Infallible>(http::Response::new(Body::from(body.as_bytes().to_vec())))
            }
        });
        Client::new(service, "default")
    }

    fn is_refused<T: std::fmt::Debug>(answer: kube::Result<T>) -> bool {
        matches!(answer, Err(kube::Error::Service(why)) if why.is::<NotLeading>())
    }

    #[tokio::test]
    async fn who_does_not_lead_reads_and_writes_nothing() {
        let (seen, answers) = (Arc::new(AtomicUsize::new(0)), Arc::new(Notify::new()));
        let leadership = Leadership::contended();
        let client = leadership.guard(server(seen.clone(), answers.clone()));
        let api = Api::<ConfigMap>::default_namespaced(client);
        api.get("a").await.unwrap();
        assert!(is_refused(api.create(&PostParams::default(), &ConfigMap::default()).await));
        assert_eq!(seen.load(Ordering::SeqCst), 1);
        leadership.lead(clock::now() + Duration::from_secs(3600));
        answers.notify_one();
        api.create(&PostParams::default(), &ConfigMap::default()).await.unwrap();
        assert_eq!(seen.load(Ordering::SeqCst), 2);
        leadership.resign();
        assert!(is_refused(api.delete("a", &Default::default()).await));
        assert_eq!(seen.load(Ordering::SeqCst), 2);
    }

    #[tokio::test]
    async fn an_answer_is_waited_for_no_longer_than_the_lease_lasts() {
        let (seen, answers) = (Arc::new(AtomicUsize::new(0)), Arc::new(Notify::new()));
        let leadership = Leadership::contended();
        let api = Api::<ConfigMap>::default_namespaced(leadership.guard(server(seen.clone(), answers.clone())));
        leadership.lead(clock::now() + Duration::from_millis(200));
        assert!(is_refused(api.create(&PostParams::default(), &ConfigMap::default()).await));
        assert_eq!(seen.load(Ordering::SeqCst), 1, "it was sent while the lease lasted");
        assert!(!leadership.leads());

        // A renewal while it waits gives it more time.
        leadership.lead(clock::now() + Duration::from_millis(200));
        let (configmap, params) = (ConfigMap::default(), PostParams::default());
        let waits = api.create(&params, &configmap);
        let renewed = async {
            leadership.lead(clock::now() + Duration::from_secs(3600));
            tokio::time::sleep(Duration::from_millis(300)).await;
            answers.notify_one();
        };
        let (answer, ()) = tokio::join!(waits, renewed);
        answer.unwrap();
    }
}
