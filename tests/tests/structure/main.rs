//! The structure of the crates: no circles, and the same files in both vendor crates.

mod circles;
mod source_tree;
mod vendor_crates;
