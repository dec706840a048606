//! Precise records as bytes.

use crate::bytes::envelope::{checked, joined, words};
use crate::bytes::error::BytesError;
use crate::precise::configuration::{ArchitecturalRecords, DebugStoreRecords, PreciseRecords};
use crate::precise::virtual_precise::VirtualPrecise;

const MAGIC: [u8; 4] = *b"vPBS";
const HEADER: usize = 24;
const WORDS: usize = 11 + 16;

impl VirtualPrecise {
    /// Number of bytes that [`to_bytes`](Self::to_bytes) returns.
    pub const BYTES: usize = HEADER + 8 * WORDS;
    /// Version of the layout that [`to_bytes`](Self::to_bytes) writes.
    pub const BYTES_VERSION: u16 = 1;

    /// Encodes the state of the guest's precise records, and of the guest's branch trace store, as bytes. Every later
    /// release can decode these bytes. The bytes do not include the written records, which are in the guest's memory.
    ///
    /// ```
    /// use pmu_virt::{Configuration, IntelConfiguration, PreciseConfiguration, VirtualPrecise};
    /// let configuration = Configuration::Intel(IntelConfiguration::new(5, 8, 4));
    /// let here = VirtualPrecise::new(&configuration, PreciseConfiguration::debug_store(4))?;
    /// let mut there = VirtualPrecise::new(&configuration, PreciseConfiguration::debug_store(4))?;
    /// there.restore(&here.to_bytes())?;
    /// assert_eq!(there, here);
    /// # Ok::<(), Box<dyn core::error::Error>>(())
    /// ```
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let words = self.singles().into_iter().chain(self.controls);
        joined(self.header(), words.flat_map(u64::to_le_bytes))
    }

    /// Sets the state of the guest's precise records and branch trace store from bytes that
    /// [`to_bytes`](Self::to_bytes) returned. The bytes may come from an earlier release, but the configuration must be
    /// the same. Untrusted bytes are safe to decode. Afterward, call [`VirtualPmu::attach`](crate::VirtualPmu::attach).
    /// That call tells the PMU which counters write precise records.
    ///
    /// # Errors
    /// Each of these errors leaves the state unchanged:
    ///
    /// - [`Length`](BytesError::Length): the number of bytes is not [`BYTES`](Self::BYTES).
    /// - [`Version`](BytesError::Version): the version of the layout is not [`BYTES_VERSION`](Self::BYTES_VERSION).
    /// - [`Malformed`](BytesError::Malformed): the bytes are not a state that precise records with this configuration
    ///   can have.
    ///
    /// ```
    /// use pmu_virt::{BytesError, Configuration, IntelConfiguration, PreciseConfiguration, VirtualPrecise};
    /// let configuration = Configuration::Intel(IntelConfiguration::new(5, 8, 4));
    /// let mut precise = VirtualPrecise::new(&configuration, PreciseConfiguration::debug_store(4))?;
    /// let mut forged = precise.to_bytes();
    /// forged[8] = 3; // records of another format
    /// assert_eq!(precise.restore(&forged), Err(BytesError::Malformed { at: 6 }));
    /// # Ok::<(), pmu_virt::PreciseConfigurationError>(())
    /// ```
    pub fn restore(&mut self, bytes: &[u8]) -> Result<(), BytesError> {
        let bytes: &[u8; Self::BYTES] = checked(bytes, MAGIC, Self::BYTES_VERSION)?;
        let (header, body) = bytes.split_at(HEADER);
        if header != self.header() {
            return Err(BytesError::Malformed { at: 6 });
        }
        let mut next = words(body);
        let mut new = *self;
        new.due = next();
        new.status = next();
        new.debug = next();
        new.area = next();
        new.enable = next();
        new.data = next();
        new.latency = next();
        new.frontend = next();
        new.adaptive = next();
        new.base = next();
        new.index = next();
        new.controls = [(); 16].map(|()| next());
        if !new.is_possible() {
            return Err(BytesError::Malformed { at: HEADER });
        }
        *self = new;
        Ok(())
    }

    fn header(&self) -> [u8; HEADER] {
        // Every field by name, so that a new one is not forgotten.
        let flags = |flags: [bool; 5]| {
            flags.into_iter().rev().fold(0, |flags, flag| flags << 1 | u8::from(flag))
        };
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
                let flags = flags([fragments, load_latency, frontend, false, false]);
                let described = [0, general, fixed, flags];
                (2, described, groups.to_le_bytes(), [general_exact, fixed_exact])
            }
        };
        let [a, b, c, d] = MAGIC;
        let [low, high] = Self::BYTES_VERSION.to_le_bytes();
        let trace = self.configuration.branch_trace.into();
        let [version, general, fixed] = [self.version, self.general, self.fixed];
        [
            a, b, c, d, low, high, kind, trace, e, f, g, h, i, j, k, l, m, n, version, general,
            fixed, 0, 0, 0,
        ]
    }

    fn singles(&self) -> [u64; 11] {
        [
            self.due,
            self.status,
            self.debug,
            self.area,
            self.enable,
            self.data,
            self.latency,
            self.frontend,
            self.adaptive,
            self.base,
            self.index,
        ]
    }
}
