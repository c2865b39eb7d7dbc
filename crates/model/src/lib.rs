//! Ropewalk.
