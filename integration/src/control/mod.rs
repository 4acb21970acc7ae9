//! What kube-scheduler and kube-controller-manager do, as far as the cluster needs it.
