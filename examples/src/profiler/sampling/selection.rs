//! The processes and threads that are profiled.

use std::collections::HashSet;

/// Processes and threads that are profiled, by number or name; all, if there is none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection(pub HashSet<String>);

impl Selection {
    /// Returns true if a thread is selected, by its own or its process's number or name.
    pub(super) fn has(&self, process: u32, thread: u32, names: [Option<&str>; 2]) -> bool {
        let Self(selected) = self;
        selected.is_empty()
            || [process, thread].iter().any(|number| selected.contains(&number.to_string()))
            || names.into_iter().flatten().any(|name| selected.contains(name))
    }
}
