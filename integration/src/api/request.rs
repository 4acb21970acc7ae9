//! What a request asks for: its path and query, taken apart.

use std::collections::BTreeMap;
use std::time::Duration;

use super::status::{Outcome, bad_request, method_not_allowed, no_such_path};
use super::user::User;

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verb {
    /// Read one object.
    Get,
    /// Read many.
    List,
    /// Read changes as they happen.
    Watch,
    /// Make an object.
    Create,
    /// Replace an object.
    Update,
    /// Change parts of an object.
    Patch,
    /// Remove an object.
    Delete,
    /// Remove many.
    DeleteCollection,
}

/// A request for objects, as fault switches and the store see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// What is to be done.
    pub verb: Verb,
    /// API group, empty for core.
    pub group: String,
    /// API version.
    pub version: String,
    /// Plural name.
    pub plural: String,
    /// Namespace of the path.
    pub namespace: Option<String>,
    /// Name of the object.
    pub name: Option<String>,
    /// `status`, `binding`, …
    pub subresource: Option<String>,
    /// Who asks, by its `User-Agent`.
    pub user_agent: String,
    /// Who asks, by its credential.
    pub user: User,
    /// The parameters.
    pub query: Query,
}

impl Request {
    /// Reads a path below `/api/v1` or `/apis/<group>/<version>`; `None` if it is none with a resource in it.
    pub fn parse(method: &http::Method, uri: &http::Uri) -> Outcome<Option<Self>> {
        let parts = uri.path().split('/').filter(|part| !part.is_empty()).map(decode).collect::<Outcome<Vec<_>>>()?;
        let parts = parts.iter().map(String::as_str).collect::<Vec<_>>();
        let (group, version, rest) = match parts.as_slice() {
            ["api", version, rest @ ..] => ("", *version, rest),
            ["apis", group, version, rest @ ..] => (*group, *version, rest),
            _ => return Ok(None),
        };
        // `namespaces/x` alone is the object; `namespaces/x/status` and `…/finalize` are its subresources.
        let (namespace, rest) = match rest {
            [] => return Ok(None),
            ["namespaces", _] | ["namespaces", _, "status" | "finalize"] => (None, rest),
            ["namespaces", namespace, rest @ ..] => (Some((*namespace).to_owned()), rest),
            _ => (None, rest),
        };
        let (plural, name, subresource) = match rest {
            [plural] => (*plural, None, None),
            [plural, name] => (*plural, Some((*name).to_owned()), None),
            [plural, name, subresource] => (*plural, Some((*name).to_owned()), Some((*subresource).to_owned())),
            _ => return Err(no_such_path()),
        };
        let query = Query::parse(uri)?;
        let verb = match (method.as_str(), &name) {
            ("GET" | "HEAD", _) if query.flag("watch") => Verb::Watch,
            ("GET" | "HEAD", Some(_)) => Verb::Get,
            ("GET" | "HEAD", None) => Verb::List,
            ("POST", _) => Verb::Create,
            ("PUT", Some(_)) => Verb::Update,
            ("PATCH", Some(_)) => Verb::Patch,
            ("DELETE", Some(_)) => Verb::Delete,
            ("DELETE", None) => Verb::DeleteCollection,
            _ => return Err(method_not_allowed()),
        };
        Ok(Some(Self {
            verb,
            group: group.to_owned(),
            version: version.to_owned(),
            plural: plural.to_owned(),
            namespace,
            name,
            subresource,
            user_agent: String::new(),
            user: User::default(),
            query,
        }))
    }
}

/// The parameters of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Query(BTreeMap<String, String>);

impl Query {
    fn parse(uri: &http::Uri) -> Outcome<Self> {
        let pairs = axum::extract::Query::<Vec<(String, String)>>::try_from_uri(uri)
            .map_err(|e| bad_request(format!("the query cannot be read: {e}")))?;
        Ok(Self(pairs.0.into_iter().collect()))
    }

    /// A parameter that is there and not empty.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// A boolean parameter; `?watch`, `?watch=1` and `?watch=true` are all true.
    pub fn flag(&self, name: &str) -> bool {
        self.0.get(name).is_some_and(|value| matches!(value.as_str(), "" | "1" | "true" | "True"))
    }

    /// A number.
    pub fn number(&self, name: &str) -> Outcome<Option<u64>> {
        self.get(name)
            .map(|text| text.parse().map_err(|_| bad_request(format!("{name}: {text:?} is not a number"))))
            .transpose()
    }

    /// A resourceVersion; 0 and absent are told apart.
    pub fn resource_version(&self) -> Outcome<Option<u64>> {
        self.number("resourceVersion")
    }

    /// How long a watch may last.
    pub fn timeout(&self) -> Outcome<Option<Duration>> {
        Ok(self.number("timeoutSeconds")?.map(Duration::from_secs))
    }

    /// Whether nothing may be kept of the write.
    pub fn dry_run(&self) -> bool {
        self.get("dryRun").is_some()
    }

    #[cfg(test)]
    pub fn of(pairs: &[(&str, &str)]) -> Self {
        Self(pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect())
    }
}

/// A path segment without its percent escapes.
fn decode(segment: &str) -> Outcome<String> {
    let mut bytes = Vec::with_capacity(segment.len());
    let mut rest = segment.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        if byte == b'%' {
            let hex = tail.get(..2).and_then(|two| std::str::from_utf8(two).ok());
            let value = hex.and_then(|two| u8::from_str_radix(two, 16).ok());
            bytes.push(value.ok_or_else(|| bad_request(format!("unreadable escape in path segment {segment:?}")))?);
            rest = &tail[2..];
        } else {
            bytes.push(byte);
            rest = tail;
        }
    }
    String::from_utf8(bytes).map_err(|_| bad_request(format!("path segment {segment:?} is not UTF-8")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(method: &str, path: &str) -> Request {
        Request::parse(&method.parse().unwrap(), &path.parse().unwrap()).unwrap().unwrap()
    }

    #[test]
    fn paths_are_taken_apart() {
        let pod = parse("GET", "/api/v1/namespaces/a/pods/b/status");
        assert_eq!((pod.verb, pod.group.as_str(), pod.plural.as_str()), (Verb::Get, "", "pods"));
        assert_eq!((pod.namespace.as_deref(), pod.name.as_deref()), (Some("a"), Some("b")));
        assert_eq!(pod.subresource.as_deref(), Some("status"));

        let namespace = parse("DELETE", "/api/v1/namespaces/a");
        assert_eq!((namespace.verb, namespace.plural.as_str()), (Verb::Delete, "namespaces"));
        assert_eq!((namespace.namespace, namespace.name.as_deref()), (None, Some("a")));

        let watch = parse("GET", "/apis/apps/v1/deployments?watch=true&resourceVersion=0&labelSelector=a%3Db");
        assert_eq!((watch.verb, watch.group.as_str()), (Verb::Watch, "apps"));
        assert_eq!(watch.query.resource_version().unwrap(), Some(0));
        assert_eq!(watch.query.get("labelSelector"), Some("a=b"));

        assert_eq!(parse("GET", "/api/v1/nodes/a%2Fb").name.as_deref(), Some("a/b"));
    }

    #[test]
    fn other_paths_are_left_to_discovery() {
        for path in ["/", "/api", "/api/v1", "/apis", "/apis/apps", "/apis/apps/v1", "/version"] {
            assert_eq!(Request::parse(&http::Method::GET, &path.parse().unwrap()).unwrap(), None, "{path}");
        }
    }
}
