//! The figures, one file each.

pub(crate) mod access;
pub(crate) mod causes;
pub(crate) mod composition;
pub(crate) mod control;
pub(crate) mod events;
pub(crate) mod faults;
pub(crate) mod figure2;
pub(crate) mod heterogeneity;
pub(crate) mod memory;
pub(crate) mod multisocket;
pub(crate) mod munisocket;
pub(crate) mod own_parts;
pub(crate) mod peers;
pub(crate) mod pressure;
pub(crate) mod rails;
pub(crate) mod rapid;
pub(crate) mod relays;
pub(crate) mod scale;
pub(crate) mod small_files;
pub(crate) mod streaming;
pub(crate) mod striping;
pub(crate) mod traps;
pub(crate) mod trees;
pub(crate) mod trunk;
pub(crate) mod tunnel;
pub(crate) mod wan;
