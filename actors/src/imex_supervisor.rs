//! imex_supervisor
