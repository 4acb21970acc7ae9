//! The invariants S1 to S4, each named once and checked by the same predicate in tests, models and production.
