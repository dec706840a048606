//! Ways to the callers of a sample.

use clap::ValueEnum;

use super::perf::Callers;

/// A way to the callers, as the command line has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CallGraph {
    /// Each file's unwind tables, and frame pointers where a file has none.
    Auto,
    /// Unwind tables alone.
    Dwarf,
    /// Frame pointers.
    Fp,
    /// No callers.
    None,
}

/// The bytes of stack that are copied with each sample: four times those that most stacks have, and few enough for the
/// buffers that any user may have.
pub const STACK_BYTES: u32 = 16 << 10;

impl CallGraph {
    /// Returns what the kernel is asked for.
    pub fn callers(self) -> Callers {
        match self {
            Self::Auto | Self::Dwarf => Callers::Stack(STACK_BYTES),
            Self::Fp => Callers::FramePointers,
            Self::None => Callers::None,
        }
    }

    /// Returns the remedy where most stacks end at their first frame: of all samples so many.
    pub fn remedy(self, (alone, all): (u64, u64)) -> Option<String> {
        let remedy = match self {
            Self::None => return None,
            _ if alone * 2 <= all || all < FEW => return None,
            Self::Fp => {
                "code without frame pointers; --call-graph auto finds callers by unwind tables"
            }
            Self::Auto | Self::Dwarf => {
                "files without unwind tables and frame pointers; build with -fasynchronous-unwind-tables or \
                 -fno-omit-frame-pointer"
            }
        };
        Some(format!("{alone} of {all} stacks end at their first frame: {remedy}"))
    }
}

/// Fewer samples tell nothing of most stacks.
const FEW: u64 = 20;
