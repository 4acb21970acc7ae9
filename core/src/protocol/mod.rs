//! The channel protocol: allocate, enter, leave, drain, fence, free.
