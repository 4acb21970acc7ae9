//! A kubelet double that calls plugins as the real one does, and its containers.
