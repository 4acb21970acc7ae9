//! An in-memory Kubernetes API server, in process and over HTTP.
