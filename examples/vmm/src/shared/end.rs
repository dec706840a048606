//! The end of a machine.

/// The guest's way of ending the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// By writing this to isa-debug-exit.
    DebugExit(u8),
    /// By this other action.
    Orderly(&'static str),
}
