//! channel_allocator
