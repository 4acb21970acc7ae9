//! slice_publisher
