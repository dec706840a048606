//! Decoding of records. The words that the processor wrote are not trusted, and each group is read on demand.

pub(crate) mod adaptive;
pub(crate) mod branches;
pub(crate) mod format;
pub(crate) mod fragment;
pub(crate) mod group;
pub(crate) mod memory;
pub(crate) mod record;
pub(crate) mod records;
pub(crate) mod registers;
pub(crate) mod shown;
pub(crate) mod values;
pub(crate) mod vectors;
pub(crate) mod words;
