//! A crate's source as a graph: its files, and which of them use which. A name is resolved through re-exports to the
//! file that defines it, so that an import through the crate's root hides nothing.

mod circles;
mod imports;
mod methods;
mod names;
mod tree;
mod uses;

pub(crate) use circles::circles;
pub(crate) use tree::SourceTree;
pub(crate) use uses::Uses;
