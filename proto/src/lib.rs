//! gRPC contracts. The `.proto` files beside this crate are the documentation of the messages.

#![allow(unreachable_pub, missing_docs, clippy::all)]

/// The kubelet's DRA plugin API.
pub mod dra {
    /// `dra/v1`.
    pub mod v1 {
        tonic::include_proto!("k8s.io.kubelet.pkg.apis.dra.v1");
    }
    /// `dra/v1beta1`.
    pub mod v1beta1 {
        tonic::include_proto!("k8s.io.kubelet.pkg.apis.dra.v1beta1");
    }
}

/// The kubelet's device health API.
pub mod health {
    /// `dra-health/v1alpha1`.
    pub mod v1alpha1 {
        tonic::include_proto!("v1alpha1");
    }
    /// `dra-health/v1`.
    pub mod v1 {
        tonic::include_proto!("v1");
    }
}

/// The kubelet's plugin registration API.
pub mod registration {
    tonic::include_proto!("pluginregistration");
}

/// Agent to runner.
pub mod runner {
    tonic::include_proto!("heddle.runner.v1");

    /// As the first release of it was, for tests of an older agent.
    #[cfg(feature = "past")]
    pub mod first {
        include!(concat!(env!("OUT_DIR"), "/past/heddle.runner.v1.rs"));
    }
}

/// Entries of `PluginInfo.supported_versions`, most preferred first.
pub const SUPPORTED_VERSIONS: &[&str] =
    &["v1.DRAPlugin", "v1beta1.DRAPlugin", "v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth"];
