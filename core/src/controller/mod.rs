//! Pure decisions of the controller.
pub mod placement;
