//! NodeLink and ChannelAllocator of several nodes against the embedded API; the test plays the controller.

mod bed;
mod claims;
mod writes;
