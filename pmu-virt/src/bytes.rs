//! States and configurations as bytes, to be stored or sent.
//!
//! All numbers are little-endian; unnamed bytes are 0.
//!
//! | configuration, 24 bytes | at |
//! |---|---|
//! | version of this layout, 1 | 0, 2 bytes |
//! | kind: 1 Intel, 2 AMD, 3 hidden | 2 |
//! | Intel: version, general counters, their width, fixed counters, their width, events | 3–8 |
//! | AMD: 0 legacy, 1 core extension, 2 PerfMonV2; its number of counters | 3, 4 |
//! | hidden: vendor (1 Intel, 2 AMD), registers as in KVM, RDPMC as 0 | 3–5 |
//! | flags, in the order of the configuration's fields | 12, 4 bytes |
//!
//! | state | at |
//! |---|---|
//! | `vPMU` | 0, 4 bytes |
//! | version of this layout, 1 | 4, 2 bytes |
//! | flags: 0 an interrupt is pending | 6 |
//! | number of registers | 7 |
//! | configuration | 8 |
//! | registers: address (4 bytes), value (8 bytes) | 32, 12 bytes each |
//!
//! | branch records, 832 bytes | at |
//! |---|---|
//! | `vLBR` | 0, 4 bytes |
//! | version of this layout, 1 | 4, 2 bytes |
//! | kind: 1 architectural, 2 legacy, 3 AMD | 6 |
//! | present number of records | 7 |
//! | architectural: depths, counters, flags in the order of the fields | 8–10 |
//! | legacy: format. AMD: number of records, whether they can freeze | 8, 9 |
//! | DEBUGCTL, status, logged counters, control or filter, `DBG_EXTN_CFG`, top of the stack | 16, 8 bytes each |
//! | records: FROM, TO, INFO | 64, 24 bytes each |
//!
//! Uses [`branches`](crate::branches), [`pmu`](crate::pmu) and the modules that these use, but neither
//! [`mock`](crate::mock) nor [`mediated`](crate::mediated).

pub(crate) mod branches;
pub(crate) mod configuration;
pub(crate) mod error;
pub(crate) mod state;
#[cfg(feature = "serde")]
mod with_serde;
