//! Network lab.
