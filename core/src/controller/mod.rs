//! What the controller decides: templates, membership, placement of exclusive domains, drain and free, status.
