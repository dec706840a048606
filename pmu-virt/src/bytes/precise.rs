//! Precise records as bytes.
//!
//! | precise records, 240 bytes | at |
//! |---|---|
//! | `vPBS` | 0, 4 bytes |
//! | version of this layout, 1 | 4, 2 bytes |
//! | kind: 0 none, 1 Debug Store, 2 architectural; whether there is a branch trace store | 6, 7 |
//! | Debug Store: format, general counters, fixed counters, flags in the order of the fields | 8–11 |
//! | architectural: general counters, fixed counters, fragments; groups; counters that are exact | 9–17 |
//! | version of the PMU; its counters that can write records, general and fixed | 18–20 |
//! | counters whose records are due, status, DEBUGCTL | 24, 8 bytes each |
//! | registers 0x600, 0x3F1, 0x3F2, 0x3F6, 0x3F7 | 48, 8 bytes each |
//! | adaptive counters, registers 0x3F4, 0x3F5, `CFG_C` of 8 general and 8 fixed counters | 88, 8 bytes each |

use crate::bytes::{BytesError, body, flags, header, joined, words};
use crate::pmu::rows::Rows;
use crate::precise::configuration::{ArchitecturalRecords, DebugStoreRecords, PreciseRecords};
use crate::precise::virtual_precise::{DUE, VirtualPrecise, WORDS};

const MAGIC: [u8; 4] = *b"vPBS";
const HEADER: usize = 24;

impl VirtualPrecise {
    /// Number of bytes that [`to_bytes`](Self::to_bytes) returns.
    pub const BYTES: usize = HEADER + 8 * (WORDS + 16);
    /// Version of the layout that [`to_bytes`](Self::to_bytes) writes.
    pub const BYTES_VERSION: u16 = 1;

    /// Encodes the state of the guest's precise records, and of the guest's branch trace store, as bytes. Every later
    /// release can decode these bytes. The bytes do not include the written records, which are in the guest's memory.
    ///
    /// ```
    /// use pmu_virt::configuration::{Configuration, IntelConfiguration};
    /// use pmu_virt::precise::{PreciseConfiguration, VirtualPrecise};
    /// let configuration = Configuration::Intel(IntelConfiguration::new(5, 8, 4));
    /// let here = VirtualPrecise::new(&configuration, PreciseConfiguration::debug_store(4))?;
    /// let mut there = VirtualPrecise::new(&configuration, PreciseConfiguration::debug_store(4))?;
    /// there.restore(&here.to_bytes())?;
    /// assert_eq!(there, here);
    /// # Ok::<(), Box<dyn core::error::Error>>(())
    /// ```
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let words = self.words.into_iter().chain(self.controls);
        joined(self.header(), words.flat_map(u64::to_le_bytes))
    }

    /// Sets the state of the guest's precise records and branch trace store from bytes that
    /// [`to_bytes`](Self::to_bytes) returned. The bytes may come from an earlier release, but the configuration must be
    /// the same. Untrusted bytes are safe to decode. Afterward, call [`VirtualPmu::attach`](crate::VirtualPmu::attach).
    /// That call tells the PMU which counters write precise records.
    ///
    /// # Errors
    /// [`Length`](BytesError::Length), [`Version`](BytesError::Version) and [`Malformed`](BytesError::Malformed). Each
    /// of them leaves the state unchanged.
    ///
    /// ```
    /// use pmu_virt::BytesError;
    /// use pmu_virt::configuration::{Configuration, IntelConfiguration};
    /// use pmu_virt::precise::{PreciseConfiguration, VirtualPrecise};
    /// let configuration = Configuration::Intel(IntelConfiguration::new(5, 8, 4));
    /// let mut precise = VirtualPrecise::new(&configuration, PreciseConfiguration::debug_store(4))?;
    /// let mut forged = precise.to_bytes();
    /// forged[8] = 3; // records of another format
    /// assert_eq!(precise.restore(&forged), Err(BytesError::Malformed { at: 6 }));
    /// # Ok::<(), pmu_virt::configuration::ConfigurationError>(())
    /// ```
    pub fn restore(&mut self, bytes: &[u8]) -> Result<(), BytesError> {
        let mut next = words(body(bytes, self.header(), Self::BYTES)?);
        let mut new = *self;
        (new.words, new.controls) = (new.words.map(|_| next()), new.controls.map(|_| next()));
        let mut reached = new.restored_from(new.after_reset());
        // No register shows which records are due, so no write restores it.
        reached.words[DUE] = new.words[DUE] & reached.enabled();
        if reached != new {
            return Err(BytesError::Malformed { at: HEADER });
        }
        *self = new;
        Ok(())
    }

    fn header(&self) -> [u8; HEADER] {
        // Every field by name, so that a new one is not forgotten.
        let (kind, [e, f, g, h], [i, j, k, l], [m, n]) = match self.configuration.records {
            PreciseRecords::None => (0, [0; 4], [0; 4], [0; 2]),
            PreciseRecords::DebugStore(records) => {
                let DebugStoreRecords {
                    format,
                    baseline,
                    general,
                    fixed,
                    load_latency,
                    frontend,
                    timing,
                    metrics,
                } = records;
                let flags = flags([baseline, load_latency, frontend, timing, metrics]);
                (1, [format, general, fixed, flags], [0; 4], [0; 2])
            }
            PreciseRecords::Architectural(records) => {
                let ArchitecturalRecords {
                    groups,
                    general,
                    fixed,
                    general_exact,
                    fixed_exact,
                    fragments,
                    load_latency,
                    frontend,
                } = records;
                let flags = flags([fragments, load_latency, frontend]);
                let described = [0, general, fixed, flags];
                (2, described, groups.to_le_bytes(), [general_exact, fixed_exact])
            }
        };
        let [version, general, fixed] = [self.version, self.general, self.fixed];
        let trace = self.configuration.branch_trace.into();
        let fields = [kind, trace, e, f, g, h, i, j, k, l, m, n, version, general, fixed];
        header(MAGIC, Self::BYTES_VERSION, fields)
    }
}
