//! CDI specs of prepared claims.
