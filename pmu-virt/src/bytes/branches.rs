//! Branch records as bytes.
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

use crate::branches::configuration::{AmdBranches, ArchitecturalBranches, BranchConfiguration};
use crate::branches::virtual_branches::{VirtualBranches, WORDS};
use crate::bytes::{BytesError, body, flags, header, joined, words};
use crate::pmu::rows::Rows;

const MAGIC: [u8; 4] = *b"vLBR";
const HEADER: usize = 16;

impl VirtualBranches {
    /// Number of bytes that [`to_bytes`](Self::to_bytes) returns.
    pub const BYTES: usize = HEADER + 8 * (WORDS + 3 * 32);
    /// Version of the layout that [`to_bytes`](Self::to_bytes) writes.
    pub const BYTES_VERSION: u16 = 1;

    /// Encodes the state of the guest's branch records as bytes. Every later release can decode these bytes.
    ///
    /// ```
    /// use pmu_virt::branches::{BranchConfiguration, VirtualBranches};
    /// use pmu_virt::configuration::{AmdConfiguration, Configuration};
    /// let configuration = Configuration::Amd(AmdConfiguration::perf_mon_v2(6));
    /// let here = VirtualBranches::new(&configuration, BranchConfiguration::AMD)?;
    /// let mut there = VirtualBranches::new(&configuration, BranchConfiguration::AMD)?;
    /// there.restore(&here.to_bytes())?;
    /// assert_eq!(there, here);
    /// # Ok::<(), Box<dyn core::error::Error>>(())
    /// ```
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let words = self.words.into_iter().chain(
            self.records.into_iter().flat_map(|record| [record.from, record.to, record.info]),
        );
        joined(self.header(), words.flat_map(u64::to_le_bytes))
    }

    /// Sets the state of the guest's branch records from bytes that [`to_bytes`](Self::to_bytes) returned. The bytes
    /// may come from an earlier release, but the configuration must be the same. Untrusted bytes are safe to decode.
    ///
    /// # Errors
    /// [`Length`](BytesError::Length), [`Version`](BytesError::Version) and [`Malformed`](BytesError::Malformed). Each
    /// of them leaves the state unchanged.
    ///
    /// ```
    /// use pmu_virt::BytesError;
    /// use pmu_virt::branches::{BranchConfiguration, VirtualBranches};
    /// use pmu_virt::configuration::{AmdConfiguration, Configuration};
    /// let configuration = Configuration::Amd(AmdConfiguration::perf_mon_v2(6));
    /// let mut branches = VirtualBranches::new(&configuration, BranchConfiguration::AMD)?;
    /// let mut forged = branches.to_bytes();
    /// forged[9] = 0; // records that cannot freeze
    /// assert_eq!(branches.restore(&forged), Err(BytesError::Malformed { at: 6 }));
    /// # Ok::<(), pmu_virt::configuration::ConfigurationError>(())
    /// ```
    pub fn restore(&mut self, bytes: &[u8]) -> Result<(), BytesError> {
        // The depth is the guest's choice. The rest of the header is the configuration, which must be the same.
        let depth = bytes.get(7).copied().unwrap_or(0);
        let mut new = Self { depth, ..*self };
        let body = body(bytes, new.header(), Self::BYTES)?;
        let could_have = match self.configuration {
            BranchConfiguration::Architectural(_) => self.has_depth(depth.into()),
            _ => depth == self.configuration.max_depth(),
        };
        if !could_have {
            return Err(BytesError::Malformed { at: 6 });
        }
        let mut next = words(body);
        new.words = new.words.map(|_| next());
        for record in &mut new.records {
            (record.from, record.to, record.info) = (next(), next(), next());
        }
        // The rules of the registers judge the bytes, too: a list of what a guest can reach would have to repeat them.
        if new.restored_from(new.after_reset()) != new {
            return Err(BytesError::Malformed { at: HEADER });
        }
        *self = new;
        Ok(())
    }

    fn header(&self) -> [u8; HEADER] {
        let (kind, [e, f, g]) = match self.configuration {
            BranchConfiguration::Architectural(branches) => {
                // Every field by name, so that a new one is not forgotten.
                let ArchitecturalBranches {
                    depths,
                    resets_in_deep_sleep,
                    privilege_filter,
                    kind_filter,
                    call_stack,
                    mispredictions,
                    cycles,
                    kinds,
                    counters,
                } = branches;
                let flags = flags([
                    resets_in_deep_sleep,
                    privilege_filter,
                    kind_filter,
                    call_stack,
                    mispredictions,
                    cycles,
                    kinds,
                ]);
                (1, [depths, counters, flags])
            }
            BranchConfiguration::Legacy { format } => (2, [format, 0, 0]),
            BranchConfiguration::Amd(AmdBranches { depth, freeze }) => {
                (3, [depth, freeze.into(), 0])
            }
        };
        header(MAGIC, Self::BYTES_VERSION, [kind, self.depth, e, f, g])
    }
}
